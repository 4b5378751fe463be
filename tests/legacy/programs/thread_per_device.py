"""A thread for each device, with a context of its own, which an error may leave behind."""

import queue
import threading

import numpy as np
import pycuda.driver as cuda
from pycuda import gpuarray
from pycuda.compiler import SourceModule

SOURCE = """
__global__ void square(double *x, int n)
{
    if (threadIdx.x < n) x[threadIdx.x] *= x[threadIdx.x];
}"""


class Worker(threading.Thread):
    def __init__(self, number, jobs, results):
        super().__init__()
        self.number, self.jobs, self.results = number, jobs, results

    def run(self):
        context = cuda.Device(self.number).make_context()
        square = SourceModule(SOURCE).get_function("square")
        while (job := self.jobs.get()) is not None:
            data = gpuarray.to_gpu(np.arange(job, dtype=np.float64))
            square(data, np.int32(job), block=(32, 1, 1))
            self.results.put((job, float(gpuarray.sum(data).get())))
            del data
        del square
        context.pop()
        context.detach()


cuda.init()
jobs, results = queue.Queue(), queue.Queue()
workers = [Worker(number, jobs, results) for number in range(cuda.Device.count()) for _ in "ab"]
for worker in workers:
    worker.start()
for job in (*range(1, 13), *[None] * len(workers)):
    jobs.put(job)
for worker in workers:
    worker.join()
found = dict(results.get() for _ in range(12))
assert found == {n: sum(i * i for i in range(n)) for n in range(1, 13)}
print("squares:", sum(found.values()))
