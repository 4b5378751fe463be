"""Several GPUs: waves whose halos go by NCCL, batches of frames on Dask, NCCL's all-reduce."""
