//! Reports of replays and sweeps.

use super::{Axis, Bars, Figure, Lines, Report, Scale, Section, Series, Table, svg::shown};
use crate::{
    replay::{Latency, Outcome, Setting},
    subject::Scheme,
    sweep::Point,
};

fn seen<T: PartialEq>(values: impl Iterator<Item = T>) -> Vec<T> {
    let mut all = Vec::new();
    values.for_each(|value| {
        if !all.contains(&value) {
            all.push(value);
        }
    });
    all
}

/// A report of one trace on several stores: which one suits this workload?
#[must_use]
pub fn of_replays(results: &[(Setting, Outcome)]) -> Report {
    let Some((setting, first)) = results.first() else { return Report::default() };
    let fitted =
        if setting.device_is_fitted { " Its times are fitted to a paper's figures." } else { "" };
    let about = format!(
        "{} blocks of 4 KiB were written by clients; of {} the content was not stored at that \
         moment. Device {}, speed {}.{fitted}",
        shown(first.client_blocks as f64),
        shown(first.ideal_blocks as f64),
        setting.device,
        setting.speed,
    );
    let groups = seen(results.iter().map(|(setting, _)| setting.persistence.clone()));
    let schemes = seen(results.iter().map(|(setting, _)| setting.scheme.to_string()));
    let bars = |title: &str, label: &str, note: &str, value: &dyn Fn(&Outcome) -> f64| Bars {
        title: title.to_owned(),
        y: Axis::linear(label),
        groups: groups.iter().map(|group| format!("{group} persistence")).collect(),
        series: schemes
            .iter()
            .map(|scheme| {
                let find = |group: &String| {
                    let found =
                        |s: &Setting| s.scheme.to_string() == *scheme && s.persistence == *group;
                    results
                        .iter()
                        .find(|(setting, _)| found(setting))
                        .map(|(_, outcome)| value(outcome))
                };
                (scheme.clone(), groups.iter().map(find).collect())
            })
            .collect(),
        mark: None,
        note: note.to_owned(),
    };
    let share = |part: u64, whole: u64| part as f64 * 100.0 / whole.max(1) as f64;
    let mut volume = bars(
        "Write volume",
        "% of the blocks that clients wrote",
        "Everything included, until the last record is in the tables.",
        &|outcome| share(outcome.device_blocks, outcome.client_blocks),
    );
    volume.mark = Some((
        "ideal: no metadata at all".to_owned(),
        vec![share(first.ideal_blocks, first.client_blocks); groups.len()],
    ));
    let time = bars(
        "Time",
        "virtual seconds",
        "Until the last request was answered; gaps of the trace included.",
        &|outcome| outcome.virtual_seconds,
    );
    let flushes =
        bars("Flushes", "flushes of the device", "Durable writes count as one each.", &|outcome| {
            outcome.flushes as f64
        });
    let mut figures = vec![Figure::Bars(volume), Figure::Bars(time), Figure::Bars(flushes)];
    // Each plot has the curves of one persistence: more lines can't be told apart.
    let curves = |title: &str, of: &dyn Fn(&Outcome) -> &Latency| {
        let plots = groups.iter().filter_map(|group| {
            let series = results.iter().filter(|(setting, outcome)| {
                setting.persistence == *group && of(outcome).p99_ms > 0.0
            });
            distribution(
                &format!("{title}, {group} persistence"),
                series.map(|(setting, outcome)| (setting.scheme.to_string(), of(outcome))),
            )
        });
        plots.collect::<Vec<Figure>>()
    };
    figures.extend(curves("Latency of flushes", &|outcome| &outcome.flush_latency));
    figures.extend(curves("Latency of writes", &|outcome| &outcome.write_latency));
    figures.push(Figure::Table(table(results)));
    let mut sections = vec![Section { title: "Schemes".to_owned(), about: Vec::new(), figures }];
    sections.extend(phases(results));
    Report {
        title: format!("{} on {} stores", setting.source, results.len()),
        about: vec![about],
        statements: Vec::new(),
        sections,
    }
}

/// The distribution of latencies, if there are any.
pub fn distribution<'a>(
    title: &str,
    of: impl Iterator<Item = (String, &'a Latency)>,
) -> Option<Figure> {
    let all: Vec<(String, &Latency)> =
        of.filter(|(_, latency)| !latency.curve.is_empty()).collect();
    // The slowest hundredth would press all others against the axis.
    let most = all.iter().map(|(_, latency)| latency.p99_ms).fold(0.0, f64::max) * 1.05;
    let middle = all
        .iter()
        .map(|(_, latency)| latency.p50_ms)
        .filter(|&ms| ms > 0.0)
        .fold(f64::INFINITY, f64::min);
    let scale = if most > 30.0 * middle { Scale::Logarithmic } else { Scale::Linear };
    let series = all.into_iter().map(|(name, latency)| {
        let kept = latency.curve.iter().filter(|point| point.0 <= most);
        Series {
            name,
            points: kept
                .map(|&(ms, share)| {
                    (if scale == Scale::Linear { ms } else { ms.max(1e-3) }, share * 100.0)
                })
                .collect(),
        }
    });
    let series: Vec<Series> = series.collect();
    let (title, x) = (title.to_owned(), Axis { label: "milliseconds".to_owned(), scale });
    let plot = Lines {
        title,
        x,
        y: Axis::linear("% of requests that took no longer"),
        series,
        steps: true,
        note: "Up to the 99th of a hundred.".to_owned(),
    };
    (!plot.series.is_empty()).then_some(Figure::Lines(plot))
}

/// All figures in numbers.
fn table(results: &[(Setting, Outcome)]) -> Table {
    let columns = [
        "scheme",
        "persistence",
        "to device",
        "% of clients'",
        "points above ideal",
        "metadata",
        "for tables",
        "records hidden",
        "windows",
        "flushes",
        "virtual s",
        "flush p50 / p99 ms",
        "verified",
        "wall s",
    ];
    let rows = results.iter().map(|(setting, outcome)| {
        let hidden = outcome.hidden_records as f64 * 100.0 / outcome.records.max(1) as f64;
        let number = |n: u64| shown(n as f64);
        vec![
            setting.scheme.to_string(),
            setting.persistence.clone(),
            number(outcome.device_blocks),
            format!("{:.2}", outcome.volume() * 100.0),
            format!("{:+.2}", outcome.points_above_ideal()),
            number(outcome.metadata_blocks),
            number(outcome.checkpoint_blocks),
            format!("{hidden:.1} %"),
            number(outcome.windows),
            number(outcome.flushes),
            format!("{:.2}", outcome.virtual_seconds),
            format!("{:.2} / {:.2}", outcome.flush_latency.p50_ms, outcome.flush_latency.p99_ms),
            number(outcome.verified_blocks),
            format!("{:.1}", outcome.wall_seconds),
        ]
    });
    Table {
        title: "In numbers".to_owned(),
        columns: columns.map(str::to_owned).to_vec(),
        rows: rows.collect(),
    }
}

/// Write volume of the parts of a trace with marks.
fn phases(results: &[(Setting, Outcome)]) -> Option<Section> {
    let (_, first) = results.first()?;
    let parts: Vec<&str> = first
        .phases
        .iter()
        .filter(|phase| phase.client_blocks > 0)
        .map(|phase| phase.name.as_str())
        .collect();
    if parts.len() < 2 {
        return None;
    }
    let mut columns = vec!["part".to_owned(), "blocks".to_owned(), "ideal".to_owned()];
    columns.extend(
        results.iter().map(|(setting, _)| format!("{}, {}", setting.scheme, setting.persistence)),
    );
    let rows = parts.iter().map(|name| {
        let of = |outcome: &Outcome| {
            outcome.phases.iter().find(|phase| phase.name == *name).cloned().unwrap_or_default()
        };
        let part = of(first);
        let share = |blocks: u64| {
            format!("{:.1} %", blocks as f64 * 100.0 / part.client_blocks.max(1) as f64)
        };
        let mut row =
            vec![(*name).to_owned(), shown(part.client_blocks as f64), share(part.ideal_blocks)];
        row.extend(results.iter().map(|(_, outcome)| share(of(outcome).device_blocks)));
        row
    });
    let table = Table {
        title: "Blocks written to the device, of those that clients wrote".to_owned(),
        columns,
        rows: rows.collect(),
    };
    let about = "Work for the tables counts in the part in which it happened.".to_owned();
    Some(Section {
        title: "Parts of the trace".to_owned(),
        about: vec![about],
        figures: vec![Figure::Table(table)],
    })
}

/// A report of a sweep: one section for each workload and device.
#[must_use]
pub fn of_points(points: &[Point]) -> Report {
    let mut sections = Vec::new();
    for (source, device) in seen(
        points.iter().map(|point| (point.setting.source.clone(), point.setting.device.clone())),
    ) {
        let here: Vec<&Point> = points
            .iter()
            .filter(|point| point.setting.source == source && point.setting.device == device)
            .collect();
        let mut figures = Vec::new();
        type Of = fn(&Point) -> f64;
        let window: Of = |point| point.setting.window_blocks as f64;
        let ratio: Of = |point| point.workload.ratio;
        let compressible: Of = |point| point.workload.compressible * 100.0;
        let throughput: Of = |point| point.throughput;
        let hidden: Of = |point| {
            let records = point.outcome.records.max(1) as f64;
            (records - point.outcome.hidden_records as f64) * 100.0 / records
        };
        for (x, label, scale) in [
            (window, "blocks of a window", Scale::Logarithmic),
            (ratio, "blocks written for each different one", Scale::Linear),
            (compressible, "% of contents that compress", Scale::Linear),
        ] {
            if seen(here.iter().map(|point| x(point))).len() > 1 {
                let x_axis = || Axis { label: label.to_owned(), scale };
                figures.push(Figure::Lines(over(
                    &here,
                    "Throughput",
                    x_axis(),
                    Axis::linear("blocks a second"),
                    x,
                    throughput,
                )));
                // The others hide none.
                let thin: Vec<&Point> = here
                    .iter()
                    .filter(|point| point.setting.scheme == Scheme::Thin)
                    .copied()
                    .collect();
                if !thin.is_empty() {
                    let explicit = Axis::linear("% of records that found no room");
                    figures.push(Figure::Lines(over(
                        &thin,
                        "Records written explicitly",
                        x_axis(),
                        explicit,
                        x,
                        hidden,
                    )));
                }
            }
        }
        let largest = here
            .iter()
            .max_by_key(|point| point.setting.window_blocks)
            .map_or(0, |point| point.setting.window_blocks);
        let smallest = here
            .iter()
            .min_by_key(|point| point.setting.window_blocks)
            .map_or(0, |point| point.setting.window_blocks);
        for size in seen([smallest, largest].into_iter()) {
            let chosen: Vec<&Point> =
                here.iter().filter(|point| point.setting.window_blocks == size).copied().collect();
            let named = chosen
                .iter()
                .map(|point| (name(&chosen, point, &[]), &point.outcome.write_latency));
            figures.extend(distribution(&format!("Latency with windows of {size}"), named));
        }
        let fitted = here.first().is_some_and(|point| point.setting.device_is_fitted);
        let about = if fitted {
            vec!["The device's times are fitted to a paper's figures.".to_owned()]
        } else {
            Vec::new()
        };
        sections.push(Section { title: format!("{source}, {device}"), about, figures });
    }
    let blocks: u64 = points.iter().map(|point| point.workload.blocks).sum();
    let wall: f64 = points.iter().map(|point| point.outcome.wall_seconds).sum();
    let about = format!(
        "{} combinations, {} blocks, {wall:.1} seconds.",
        points.len(),
        shown(blocks as f64)
    );
    Report { title: "Sweep".to_owned(), about: vec![about], statements: Vec::new(), sections }
}

/// A line for each combination of what is not on the axis.
fn over(
    points: &[&Point],
    title: &str,
    x: Axis,
    y: Axis,
    of_x: fn(&Point) -> f64,
    of_y: fn(&Point) -> f64,
) -> Lines {
    let mut series: Vec<Series> = Vec::new();
    for point in points {
        let name = name(points, point, &[of_x]);
        let (at, value) = (of_x(point), of_y(point));
        match series.iter_mut().find(|line| line.name == name) {
            Some(line) => line.points.push((at, value)),
            None => series.push(Series { name, points: vec![(at, value)] }),
        }
    }
    series.iter_mut().for_each(|line| line.points.sort_by(|a, b| a.0.total_cmp(&b.0)));
    Lines { title: title.to_owned(), x, y, series, steps: false, note: String::new() }
}

/// A name with the settings in which the points differ, but for those on the axis.
fn name(points: &[&Point], point: &Point, axis: &[fn(&Point) -> f64]) -> String {
    let mut parts = vec![point.setting.scheme.to_string()];
    let values: [(fn(&Point) -> f64, &str); 3] = [
        (|point| point.setting.window_blocks as f64, "window"),
        (|point| point.workload.ratio, "ratio"),
        (|point| point.workload.compressible * 100.0, "compressible %"),
    ];
    for (value, label) in values {
        let differs = seen(points.iter().map(|point| value(point))).len() > 1;
        let on_axis = axis.iter().any(|of| points.iter().all(|point| of(point) == value(point)));
        if differs && !on_axis {
            parts.push(format!("{label} {}", shown(value(point))));
        }
    }
    parts.join(", ")
}
