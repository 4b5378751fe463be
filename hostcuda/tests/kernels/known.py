"""Kernels that are not right on the host driver today, and why. They are right on a GPU.

A test that ends in another way than its list says fails: move it, or delete its line.
"""


def because(reason: str, area: str, names: str) -> dict[str, str]:
    """Give each of an area's kernels a reason."""
    return dict.fromkeys((f"{area}.{name}" for name in names.split()), reason)


REFUSED = {
    **because("inline PTX", "masks", "uni lanemasks elect_by_inline_ptx shfl_tells_of_its_range"),
    **because(
        "device.h has a part of what NVRTC declares",
        "masks",
        """
        match_any match_any_of_64_bits match_any_of_a_mask match_all reduce_add
        reduce_min_max_signed reduce_min_unsigned reduce_bits reduce_add_of_groups
        """,
    ),
    **because("inline PTX", "exits", "exit_by_inline_ptx"),
    **because("device.h has a part of what NVRTC declares", "exits", "grid_of_3_dimensions"),
    **because(
        "hostcuda's cuda_fp16.h has a part of the real one",
        "half",
        """
        sizes from_double_rounds_once directed_from_float to_integers from_integers
        fma_rounds_once saturating compare_with_nan min_max divide_and_roots
        rounding_functions half2_arithmetic half_shuffles atomics_of_half2
        integer_hadd_beside loads_of_vectors
        """,
    ),
    **because(
        "g++ does not compile the header",
        "half",
        """
        bf16_from_float bf16_arithmetic bf16x2 e4m3_from_float e5m2_from_float
        fp8_to_float
        """,
    ),
    **because("device.h has a part of what NVRTC declares", "floats", "double_directed"),
    **because(
        "device.h has a part of what NVRTC declares",
        "integers",
        """
        mulhi_of_64_bits hadd_rhadd funnel_shifts dp4a dp2a vadd4 vadd2 vmin_vmax_4
        vabs_vneg vcmp_vset dpx minmax_abs
        """,
    ),
    **because("inline PTX", "integers", "shifts_of_ptx_clamp"),
    **because(
        "device.h has a part of what NVRTC declares",
        "conversions",
        """
        float_from_double_directed float_from_int_directed
        double_from_long_long_directed int_from_float_directed
        """,
    ),
    **because(
        "device.h has a part of what NVRTC declares",
        "functions",
        """
        norms_do_not_overflow norms_of_double sincos
        """,
    ),
    **because("device.h has a part of what NVRTC declares", "atomics", "block_and_system_scope"),
    **because("inline PTX", "atomics", "red_by_inline_ptx atom_by_inline_ptx"),
    **because(
        "device.h has a part of what NVRTC declares",
        "memory",
        """
        dynamic_shared_aligned dynamic_shared_of_a_template const_loads
        """,
    ),
    **because(
        "inline PTX",
        "waits",
        """
        named_barriers arrive_and_sync ping_pong_of_named_barriers
        barrier_numbers_from_registers reducing_barriers clock_goes_on
        """,
    ),
    **because(
        "g++ does not compile cooperative_groups.h",
        "groups",
        """
        thread_block thread_block_sync tile_of_8 tile_shuffles tile_votes tile_match
        tile_in_a_branch tile_of_run_time coalesced_threads coalesced_shuffles
        aggregated_by_coalesced_threads labeled_partition binary_partition reduce
        reduce_of_float_by_a_lambda reduce_of_coalesced_threads scans invoke_one
        block_tile_of_64 grid_sync grid_rank
        """,
    ),
    **because(
        "g++ does not compile CUB",
        "cub",
        """
        block_reduce block_reduce_by_an_operator block_reduce_of_a_part block_scan
        block_scan_of_items block_radix_sort block_radix_sort_of_pairs warp_reduce
        warp_reduce_of_8 warp_scan warp_merge_sort block_load_and_store
        block_discontinuity block_exchange block_histogram
        """,
    ),
    **because(
        "inline PTX",
        "ptx",
        """
        mad_wide mad_hi_lo prmt bfe bfi lop3 shf bit_searches fns carries carries_of_mad
        saturating_integers saturating_conversions slct_selp_set setp_with_two_results
        predicated_instructions branches_and_labels vector_loads_and_stores small_loads
        mov_packs cvt_pack cvt_of_halves cvt_rounds_to_integers floats_with_modifiers
        testp_copysign spaces cvta special_registers dot_products video
        integer_min_max_of_16_bits rem_and_div_of_64_bits
        """,
    ),
    **because("device.h has a part of what NVRTC declares", "textures", "gather"),
    **because("inline PTX", "errors", "trap_by_inline_ptx"),
}

WRONG = {
    **because("a lane is not taken modulo the width", "masks", "idx_negative_width_8"),
    **because("the width is not kept", "masks", "xor_beyond_width"),
    **because(
        "warp functions meet at the block's barrier, whatever their masks",
        "masks",
        """
        down_half_mask_then_all
        """,
    ),
    **because(
        "__activemask is always full",
        "masks",
        """
        activemask_of_half_a_warp aggregated_atomic
        """,
    ),
    **because(
        "exited threads are counted as present",
        "exits",
        """
        return_then_activemask count_after_return and_after_return
        """,
    ),
    **because("halves are added in float", "half", "sum_beyond_2048 overflow_between"),
    **because(
        "rounding modes are ignored",
        "floats",
        """
        add_directed multiply_directed divide_and_root_directed fma_directed
        subnormal_directed
        """,
    ),
    **because(
        "products are not contracted",
        "floats",
        """
        contraction_of_float contraction_of_double contraction_of_a_difference
        contraction_of_a_product_minus
        """,
    ),
    **because(
        "subnormals are not flushed",
        "floats",
        """
        flushed comparisons_flush approximate_division
        """,
    ),
    **because("max(x, y) is x > y ? x : y", "floats", "min_max_of_nan min_max_of_nan_in_double"),
    **because("__saturatef of NaN", "floats", "saturated"),
    **because("NaN is that of the host", "floats", "nan_payload"),
    **because("__mul24 is a plain product", "integers", "mul24"),
    **because(
        "the host's processor converts what does not fit",
        "conversions",
        """
        int_from_float unsigned_from_float int_from_double unsigned_from_double
        long_long_from_double unsigned_long_long_from_double long_long_from_float
        """,
    ),
    **because("sinpi is sin(pi * x)", "functions", "sinpi_cospi sinpi_cospi_of_double"),
    **because("erfinv loses small arguments", "functions", "erfinv_near_0 erfinvf_near_0"),
    **because(
        "code for warps in step needs barriers, which a pattern did not find",
        "memory",
        """
        volatile_warp_sum volatile_warp_sum_by_pointer
        """,
    ),
    **because("words of CUDA are removed from strings", "language", "strings"),
    **because("printf counts characters", "language", "printf_returns"),
    **because(
        "alignment and bounds are not checked",
        "errors",
        """
        misaligned_int misaligned_write misaligned_double misaligned_float4
        misaligned_shared misaligned_atomic
        """,
    ),
}

ERROR = {
    **because("the variable is not found", "memory", "device_global_from_the_host"),
    **because(
        "a thread that spins is never set aside",
        "waits",
        """
        block_0_waits_for_block_1 chain_of_blocks barrier_of_the_grid_by_atomics
        a_warp_waits_for_another a_thread_waits_for_its_warp a_warp_passes_a_turn
        nanosleep_in_a_spin producer_and_consumer
        """,
    ),
    **because(
        "a signal ends the process",
        "errors",
        """
        read_of_null write_of_null read_far_outside write_far_outside write_far_before
        atomic_far_outside one_thread_of_many endless_recursion null_function
        """,
    ),
    **because("assert ends the process", "errors", "assertion assertion_of_a_late_thread"),
}

# An error or a wrong number, from run to run.
UNSURE = {
    **because(
        "what lies behind shared memory is read, if it is there", "errors", "outside_of_shared"
    ),
}
