"""Questions to the real NVRTC, also without a GPU."""

import json

from gpus import ON_GPU
from processes import run_python


def in_nvrtc(script, cases, tmp_path_factory):
    """Return what a script's function `attempt` returns for each case, with the real NVRTC.

    In another process: without a GPU, g++ is in NVRTC's place in this one.
    """
    path = tmp_path_factory.mktemp("nvrtc") / "cases.json"
    path.write_text(json.dumps(cases))
    host = "" if ON_GPU else "import hostcuda; hostcuda.install(compilers=False)"
    start = f"{host}\nimport json\n"
    end = f"""
with open({str(path)!r}) as file:
    cases = json.load(file)
print(json.dumps({{name: attempt(*case) for name, case in cases.items()}}))
"""
    done = run_python(start + script + end, devices=0)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
