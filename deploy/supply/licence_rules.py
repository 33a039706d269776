"""The licences that tpuserve may distribute or develop with, as SPDX identifiers, and what packages call them."""

from typing import Final

# Licences of packages in images and in the distributions: permissive, or copyleft for changed files of the package.
DISTRIBUTED: Final = frozenset(
    (
        "0BSD",
        "Apache-2.0",
        "Apache-2.0 WITH LLVM-exception",
        "BSD-2-Clause",
        "BSD-3-Clause",
        "BSL-1.0",
        "CC0-1.0",
        "CNRI-Python",
        "HPND",
        "ISC",
        "MIT",
        "MIT-0",
        "MIT-CMU",
        "MPL-2.0",
        "PSF-2.0",
        "Unlicense",
        "ZPL-2.1",
        "Zlib",
    )
)
# Further licences of programs that only develop and test tpuserve, and that nobody gets from it.
DEVELOPMENT: Final = DISTRIBUTED | {"GPL-2.0-only", "GPL-3.0-only", "GPL-3.0-or-later"}
# Proprietary licences, by package. Their terms allow use on the vendor's devices, and forbid changes. The images `tpu`
# and `cuda` contain them, so read the terms before you publish one of the two.
PROPRIETARY: Final[dict[str, str]] = {
    "libtpu": "LicenseRef-Google-Cloud-Terms",
    **{
        f"nvidia-{name}": "LicenseRef-NVIDIA-Proprietary"
        for name in (
            "cublas", "cuda-cccl", "cuda-crt", "cuda-cupti", "cuda-nvcc", "cuda-nvrtc", "cuda-runtime", "cudnn-cu13",
            "cufft", "cusolver", "cusparse", "nvjitlink", "nvshmem-cu13", "nvvm",
        )
    },
}  # fmt: skip

# Licences that a person has read, of packages whose metadata has none, an unclear one, or that are not installed here.
REVIEWED: Final[dict[str, str]] = {
    "appnope": "BSD-2-Clause",
    "atheris": "Apache-2.0",
    "axe-playwright-python": "MIT",
    "colorama": "BSD-3-Clause",
    "cycler": "BSD-3-Clause",
    # The GPL covers a file for Emacs, which tpuserve does not use.
    "docutils": "CC0-1.0 AND BSD-2-Clause",
    "email-validator": "Unlicense",
    "httpx2-jsfetch": "BSD-3-Clause",
    "jax-cuda13-pjrt": "Apache-2.0",
    "jax-cuda13-plugin": "Apache-2.0",
    "kubernetes-validate": "Apache-2.0",
    "matplotlib": "PSF-2.0",
    "namex": "Apache-2.0",
    "nest-asyncio": "BSD-2-Clause",
    "nvidia-nccl-cu13": "BSD-3-Clause",
    "pysimdjson": "MIT AND Apache-2.0",
    "pysocks": "BSD-3-Clause",
    "python-dateutil": "Apache-2.0 OR BSD-3-Clause",
    "pywin32": "PSF-2.0",
    "pywin32-ctypes": "BSD-3-Clause",
    "requests-oauthlib": "ISC",
    "scipy": "BSD-3-Clause",
    "sigstore-models": "MIT",
}

# What packages write in the field License of their metadata.
FREE_TEXT: Final[dict[str, str]] = {
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache": "Apache-2.0",
    "Apache 2.0": "Apache-2.0",
    "Apache 2.0 License": "Apache-2.0",
    "Apache License": "Apache-2.0",
    "Apache License 2.0": "Apache-2.0",
    "BSD 2-Clause License": "BSD-2-Clause",
    "BSD 3-Clause": "BSD-3-Clause",
    "BSD 3-Clause License": "BSD-3-Clause",
    "GPL-3.0": "GPL-3.0-only",
    "GPLv2": "GPL-2.0-only",
    "ISC license": "ISC",
    "MIT License": "MIT",
    "MIT license": "MIT",
}
# Classifiers, for packages without such a field. "BSD License" means one of two licences that are both allowed.
CLASSIFIERS: Final[dict[str, str]] = {
    "Apache Software License": "Apache-2.0",
    "BSD License": "BSD-3-Clause",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
}
