//! The page of the reference about figures, in Markdown, from their description.

use super::figures::{FIGURES, Figure, Read, Seen, Source, Unit};

/// What stands above the table.
const ABOUT: &str = "# Metrics

`onefold serve --http ADDRESS` shows these figures at `/metrics`, in the text format 0.0.4 of
Prometheus ([how to read them](../how-to/monitoring.md)). Units are bytes and seconds. Counters begin
when the server opens the store, and fall only when it starts again. An engine that lacks a figure
leaves it out. Each figure stands in [`/status.json`](json.md) too, under the key that is named here.

Figures marked with *o* tell what the store holds. They are shown to its operator alone: over a UNIX
socket, or with `--one-tenant`.

This page is written by `cargo xtask docs`.

| figure | type | labels | meaning | block | archive | cluster |
|---|---|---|---|---|---|---|
";

/// The page.
pub(crate) fn page() -> String {
    let rows: String = FIGURES.iter().map(row).collect();
    format!("{ABOUT}{rows}")
}

fn row(figure: &Figure) -> String {
    let mark = if figure.seen == Seen::ByOperator { " *o*" } else { "" };
    let unit = match figure.unit {
        Unit::Bytes => ", bytes",
        Unit::Seconds => ", seconds",
        Unit::Number => "",
        Unit::Truth => ", 0 or 1",
    };
    let keys = ["block", "archive", "cluster"].map(|engine| keys(figure, engine)).join(" | ");
    format!(
        "| `onefold_{}`{mark} | {}{unit} | {} | {} | {keys} |\n",
        figure.name,
        figure.kind.name(),
        labels(figure),
        figure.help
    )
}

/// The labels, with their values where the description has them.
fn labels(figure: &Figure) -> String {
    let mut texts: Vec<String> = Vec::new();
    for source in figure.sources {
        let of_source = match (source.read, source.label) {
            (Read::OfVolumes(_), _) => vec!["`volume`".to_owned()],
            (Read::OfDomains(_), _) => vec!["`domain`".to_owned()],
            (Read::OfSnapshots(_), _) => vec!["`snapshot`".to_owned()],
            (Read::Operations, _) => vec!["`op`".to_owned()],
            (Read::Texts(labels), _) => {
                labels.iter().map(|(name, _)| format!("`{name}`")).collect()
            }
            (_, Some((name, value))) => vec![format!("`{name}=\"{value}\"`")],
            (_, None) => Vec::new(),
        };
        of_source.into_iter().for_each(|text| {
            if !texts.contains(&text) {
                texts.push(text);
            }
        });
    }
    texts.join(", ")
}

/// The keys of an engine's report.
fn keys(figure: &Figure, engine: &str) -> String {
    let key = |source: &Source| {
        let dotted = source.at.trim_start_matches('/').replace('/', ".");
        match source.read {
            Read::OfVolumes(field) | Read::OfDomains(field) | Read::OfSnapshots(field) => {
                format!("`{dotted}[].{field}`")
            }
            Read::Operations => format!("`{dotted}[]`"),
            Read::Number(factor) if factor > 1 => format!("`{dotted}` × {factor}"),
            _ => format!("`{dotted}`"),
        }
    };
    let keys: Vec<String> =
        figure.sources.iter().filter(|source| source.engines.contains(&engine)).map(key).collect();
    keys.join(", ")
}
