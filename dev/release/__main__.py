"""`python -m dev.release`: see docs/release.md."""

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from dev.localcluster.errors import LocalClusterError
from dev.localcluster.say import complain, say
from dev.localcluster.tools import RELEASE, ensure
from dev.release import registry, steps
from dev.release.commands import ReleaseError
from dev.release.plan import Plan, read, require_registry
from dev.release.signing import Signer, Verifier, open_key, throw_away_key
from dev.release.source import ROOT, Source, look, require_committed, require_version, version_of
from dev.release.verify import commands, verify

FOLDER = ROOT / "build/release"


def main(arguments: Sequence[str]) -> int:
    """The command line; its exit code."""
    options = _parser().parse_args(arguments)
    try:
        if options.verify:
            _verify_again(options)
        else:
            _release(options)
    except (ReleaseError, LocalClusterError) as error:
        complain(str(error))
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m dev.release", description="Release images and chart, signed.")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--registry", metavar="HOST/PATH", help="where images and chart are pushed")
    where.add_argument("--local", action="store_true", help="to a registry on loopback, for as long as this runs")
    parser.add_argument(
        "--key", type=Path, metavar="FILE", help="cosign's private key; its password in COSIGN_PASSWORD"
    )
    parser.add_argument(
        "--unsigned", action="store_true", help="sign nothing, and need no key: another machine signs the digests"
    )
    parser.add_argument("--version", help="must be the one of pyproject.toml, which it is by default")
    parser.add_argument("--dirty", action="store_true", help="with --local: although files differ from the commit")
    parser.add_argument("--verify", action="store_true", help="only verify what the last run has released")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the files of the release are written")
    return parser


def _release(options: argparse.Namespace) -> None:
    source, version = _checked(options)
    programs = ensure(*RELEASE)
    with _signer(programs["cosign"], options) as signer:
        public_key = steps.public_key(signer, published=not options.local) if signer else ""
        steps.require_ours(options.folder)
        with _registry(options, empty=True) as address:
            plan = Plan(address, version, options.folder.resolve())
            registry.require_reachable(plan.host, plain_http=plan.plain_http)
            released = steps.release(plan, source, signer, public_key, programs["syft"])
            if signer:
                say("verifying all artifacts, as users do")
                verify(plan, released, Verifier(programs["cosign"], plan.public_key))
    if not signer:
        say(f"pushed {version}, unsigned; its files are in {plan.folder}")
        return
    say(f"released {version}; its files are in {plan.folder}. To verify it there:")
    for line in commands(plan, released):
        say(f"  {line}")
    if options.local:
        say("The registry has stopped; `python -m dev.release --local --verify` starts it again temporarily.")


def _checked(options: argparse.Namespace) -> tuple[Source, str]:
    if options.dirty and not options.local:
        raise ReleaseError("--dirty is for trying out: it needs --local")
    if options.unsigned and options.key:
        raise ReleaseError("--unsigned uses no key: leave --key out, so that this machine does not have it")
    if options.registry:
        require_registry(options.registry)
    source, version = look(), version_of()
    require_committed(source, allowed=options.dirty)
    require_version(version, asked=options.version, tags=source.tags, must_be_tagged=not options.local)
    return source, version


def _verify_again(options: argparse.Namespace) -> None:
    released = read(options.folder)
    plan = Plan(released.registry, released.version, options.folder.resolve())
    if options.registry and options.registry != released.registry:
        raise ReleaseError(f"{plan.folder} holds a release to {released.registry}, not to {options.registry}")
    with _registry(options, empty=False):
        registry.require_reachable(plan.host, plain_http=plan.plain_http)
        # The key that users know, not the one that lies beside what is to be verified.
        known = steps.PUBLISHED_KEY if options.registry and steps.PUBLISHED_KEY.exists() else plan.public_key
        verify(plan, released, Verifier(ensure("cosign")["cosign"], known))
    say(f"{released.version} in {released.registry} matches its release files")


@contextmanager
def _registry(options: argparse.Namespace, *, empty: bool) -> Iterator[str]:
    if options.local:
        with registry.serving(options.folder.resolve() / "registry", empty=empty) as address:
            yield address
    else:
        yield options.registry


@contextmanager
def _signer(cosign: Path, options: argparse.Namespace) -> Iterator[Signer | None]:
    if options.unsigned:
        yield None
    elif options.local and options.key is None:
        with throw_away_key(cosign) as signer:
            yield signer
    else:
        yield open_key(cosign, options.key)


if __name__ == "__main__":
    os.umask(0o022)  # what is written is for others to read; the key has a mode of its own
    sys.exit(main(sys.argv[1:]))
