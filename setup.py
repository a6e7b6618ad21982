"""Packaging, read from settings.ini so that each fact is written once."""

from configparser import ConfigParser
from pathlib import Path
from setuptools import find_packages, setup

here = Path(__file__).parent
config = ConfigParser(delimiters=["="], interpolation=None)
config.read(here / "settings.ini", encoding="utf-8")
s = config["DEFAULT"]
demo, ray, metrics, docs = (
    s[f"{extra}_requirements"].split() for extra in ("pip", "ray", "metrics", "docs")
)

setup(
    name=s["lib_name"],
    version=s["version"],
    description=s["description"],
    long_description=(here / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    author=s["author"],
    author_email=s["author_email"],
    license="Apache-2.0",
    url=s["git_url"],
    keywords=s["keywords"],
    classifiers=[
        "Development Status :: 3 - Alpha",
        "Intended Audience :: Science/Research",
        "Programming Language :: Python :: 3",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
    packages=find_packages(include=["lrp_loo", "lrp_loo.*"]),
    package_data={
        "lrp_loo": [
            "assets/*.jsonl",
            "assets/*.html",
            "assets/*.css",
            "assets/*.csv",
            "assets/*/*",
        ]
    },
    include_package_data=True,
    python_requires=f">={s['min_python']}",
    install_requires=s["requirements"].split(),
    extras_require={
        "demo": demo,
        "base": s["base_requirements"].split(),
        "llm": s["llm_requirements"].split(),
        "ray": ray,
        "xlsx": s["xlsx_requirements"].split(),
        "bench": s["bench_requirements"].split(),
        "metrics": metrics,
        "docs": docs,
        "dev": demo + ray + metrics + docs + s["dev_requirements"].split(),
    },
    entry_points={
        "console_scripts": s["console_scripts"].split(),
        "nbdev": [f"{s['lib_name']}={s['lib_name']}._modidx:d"],
    },
    zip_safe=False,
)
