"""Conway's Game of Life on a torus, generation by generation between two arrays."""

import numpy as np
import pycuda.gpuarray as gpuarray

N = 48
GENERATIONS = 12


def inputs():
    return (np.random.default_rng(7).random((N, N)) < 0.3).astype(np.int32)


def run(SourceModule):
    mod = SourceModule("""
    #define WRAP(i) (((i) + n) % n)

    __global__ void evolve(int *newboard, const int *board, int n)
    {
        int x = threadIdx.x + blockIdx.x * blockDim.x;
        int y = threadIdx.y + blockIdx.y * blockDim.y;
        int neighbors = 0;

        for (int dy = -1; dy <= 1; dy++)
            for (int dx = -1; dx <= 1; dx++)
                if (dx != 0 || dy != 0)
                    neighbors += board[WRAP(y + dy) * n + WRAP(x + dx)];

        switch (neighbors) {
            case 2:  newboard[y * n + x] = board[y * n + x]; break;
            case 3:  newboard[y * n + x] = 1; break;
            default: newboard[y * n + x] = 0;
        }
    }
    """)
    evolve = mod.get_function("evolve")

    board = gpuarray.to_gpu(inputs())
    newboard = gpuarray.empty_like(board)
    for _ in range(GENERATIONS):
        evolve(newboard, board, np.int32(N), block=(16, 16, 1), grid=(N // 16, N // 16))
        board, newboard = newboard, board
    return {"board": board.get()}


def expected():
    board = inputs()
    around = [(y, x) for y in (-1, 0, 1) for x in (-1, 0, 1) if (y, x) != (0, 0)]
    for _ in range(GENERATIONS):
        neighbors = sum(np.roll(board, shift, (0, 1)) for shift in around)
        board = ((neighbors == 3) | ((neighbors == 2) & (board == 1))).astype(np.int32)
    return {"board": board}
