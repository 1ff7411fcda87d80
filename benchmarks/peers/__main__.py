"""Measure supervisors side by side. docs/reference/performance.md says what each metric is."""

import argparse
import sys
from pathlib import Path

from benchmarks.peers import leading, measures, picture, report, results, rounds, tools
from benchmarks.peers.adapter import Places
from benchmarks.peers.measures import Extent
from benchmarks.peers.results import Sample

_DEFAULT_ROUNDS = 3
_SHORT_PEERS = "xce,floor-c,floor-asyncio-popen"


def main() -> int:
    """Run; the result is the exit status."""
    args = _parser().parse_args()
    args.tools = args.tools.absolute()  # commands run elsewhere
    places = Places(built=args.tools / "bin", installed=args.tools, ours=Path(sys.executable).parent)
    peers = (args.peers or (_SHORT_PEERS if args.short else ",".join(rounds.SUPERVISORS))).split(",")
    metrics = frozenset(args.metrics.split(",")) if args.metrics else frozenset(rounds.METRICS)
    for unknown in (*(set(peers) - set(rounds.SUPERVISORS)), *(metrics - set(rounds.METRICS))):
        print(f"there is no {unknown}; peers: {', '.join(rounds.SUPERVISORS)}; metrics: {', '.join(rounds.METRICS)}")
        return 2
    raw = args.out / "raw.jsonl"
    if not args.report:
        tools.build(places.built)
        for peer, sentence in tools.missing(peers, places).items():
            print(sentence, file=sys.stderr)
            peers.remove(peer)
        args.out.mkdir(parents=True, exist_ok=True)
        raw.unlink(missing_ok=True)
        _measure(args, places, peers, metrics, raw)
    found = results.Results(results.read(raw))
    text = report.markdown(
        found, {peer: rounds.SUPERVISORS[peer].version(places) for peer in found.peers() if peer in peers}
    )
    (args.out / "report.md").write_text(text, encoding="utf-8")
    (args.out / "performance.svg").write_text(picture.pictures(found), encoding="utf-8")
    print(text if args.short else f"{args.out}/report.md, {args.out}/performance.svg, {raw}")
    return 0


def _measure(args: argparse.Namespace, places: Places, peers: list[str], metrics: frozenset[str], raw: Path) -> None:
    def keep(sample: Sample) -> None:
        results.write(sample, raw)
        shown = measures.show(list(sample.values))
        print(
            f"{sample.round} {sample.peer:<20} {sample.count:>3} {sample.metric:<20} {shown} {sample.notes or ''}",
            flush=True,
        )

    plan = rounds.Plan(
        peers=peers,
        metrics=metrics,
        stages=rounds.SHORT_STAGES if args.short else rounds.STAGES,
        extent=measures.SHORT if args.short else Extent(),
        settle_s=0.2 if args.short else 2.0,
    )
    count = args.rounds or (1 if args.short else _DEFAULT_ROUNDS)
    rounds.run(plan, places, count, keep)
    if "leadership" in metrics and "xce" in peers:
        for sample in leading.samples(10 if args.short else 300):
            keep(sample)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("--rounds", type=int, metavar="N", help=f"[{_DEFAULT_ROUNDS}; with --short 1]")
    parser.add_argument("--metrics", metavar="LIST", help="[all]")
    parser.add_argument("--peers", metavar="LIST", help=f"[all; with --short {_SHORT_PEERS}]")
    parser.add_argument("--short", action="store_true", help="three components and few repetitions: does it work?")
    parser.add_argument("--out", type=Path, default=Path(".bench/results"), metavar="DIR", help="[.bench/results]")
    parser.add_argument("--tools", type=Path, default=Path(".bench/tools"), metavar="DIR", help="[.bench/tools]")
    parser.add_argument("--report", action="store_true", help="measure nothing: write the report of what DIR holds")
    return parser


if __name__ == "__main__":
    sys.exit(main())
