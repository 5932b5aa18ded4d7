//! Figures in the text format 0.0.4 of Prometheus, read from a report.

use std::{collections::HashMap, fmt::Write};

use serde_json::{Number, Value};

use super::figures::{FIGURES, Figure, Kind, Read, Seen, Source};

/// The type of the text.
pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Volumes with a label of their own; the values of the others are added up.
const VOLUMES_MAX: usize = 1000;

/// The label of the other volumes.
const OTHER: &str = "other";

/// All figures that `report` has, for clients who may see what is `seen` by all, or everything.
pub(crate) fn text(report: &Value, most: Seen) -> String {
    let mut text = String::new();
    for figure in FIGURES.iter().filter(|figure| figure.seen == Seen::ByAll || most != Seen::ByAll)
    {
        let mut samples = Samples::default();
        figure
            .sources
            .iter()
            .filter(|source| source.is_of(report))
            .for_each(|source| samples.read(figure, source, report));
        samples.write(figure, &mut text);
    }
    text
}

impl Source {
    fn is_of(&self, report: &Value) -> bool {
        report["engine"].as_str().is_some_and(|engine| self.engines.contains(&engine))
    }
}

/// The samples of a figure by what stands before their values, in order.
#[derive(Default)]
struct Samples {
    lines: Vec<(String, Number)>,
    places: HashMap<String, usize>,
}

impl Samples {
    /// Adds a value. Two volumes may have one label.
    fn add(&mut self, suffix: &str, labels: &[(&str, &str)], value: Number) {
        let shown: Vec<String> =
            labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
        let key = match &shown[..] {
            [] => suffix.to_owned(),
            shown => format!("{suffix}{{{}}}", shown.join(",")),
        };
        match self.places.get(&key) {
            Some(at) => self.lines[*at].1 = sum(&self.lines[*at].1, &value),
            None => {
                self.places.insert(key.clone(), self.lines.len());
                self.lines.push((key, value));
            }
        }
    }

    /// The number in this field of each thing of a list, with its name as a label.
    fn named(&mut self, label: &'static str, field: &str, value: &Value) {
        for one in value.as_array().into_iter().flatten().take(VOLUMES_MAX) {
            if let (Some(name), Value::Number(value)) = (one["name"].as_str(), &one[field]) {
                self.add("", &[(label, name)], value.clone());
            }
        }
    }

    /// Reads what a source has in a report; nothing where it has nothing.
    fn read(&mut self, figure: &Figure, source: &Source, report: &Value) {
        let Some(value) = report.pointer(source.at) else { return };
        let label = source.label;
        let labels = label.as_slice();
        match source.read {
            Read::Number(factor) => {
                if let Value::Number(number) = value {
                    self.add("", labels, times(number, factor));
                }
            }
            Read::IsThere => self.add("", labels, u64::from(!value.is_null()).into()),
            Read::Length => self.add("", labels, value.as_array().map_or(0, Vec::len).into()),
            Read::OfVolumes(field) => self.volumes(field, value),
            Read::OfSnapshots(field) => self.named("snapshot", field, value),
            // As many as a store has at a time.
            Read::OfDomains(field) => self.named("domain", field, value),
            Read::Operations => value.as_array().into_iter().flatten().for_each(|operation| {
                if let Some(name) = operation["op"].as_str() {
                    self.histogram(name, operation);
                }
            }),
            Read::Times => self.times(labels, value),
            Read::Texts(places) => {
                let labels: Vec<(&str, &str)> = places
                    .iter()
                    .filter_map(|(name, at)| Some((*name, report.pointer(at)?.as_str()?)))
                    .collect();
                self.add("", &labels, 1.into());
            }
        }
        debug_assert!(
            matches!(figure.kind, Kind::Histogram | Kind::Summary)
                == matches!(source.read, Read::Operations | Read::Times)
        );
    }

    fn volumes(&mut self, field: &str, volumes: &Value) {
        for (n, volume) in volumes.as_array().into_iter().flatten().enumerate() {
            if let (Some(name), Value::Number(value)) = (volume["name"].as_str(), &volume[field]) {
                let name = if n < VOLUMES_MAX { name } else { OTHER };
                self.add("", &[("volume", name)], value.clone());
            }
        }
    }

    fn histogram(&mut self, name: &str, operation: &Value) {
        let op = ("op", name);
        for bucket in operation["buckets"].as_array().into_iter().flatten() {
            if let (Value::Number(bound), Value::Number(count)) =
                (&bucket["seconds"], &bucket["count"])
            {
                let bound = bound.to_string();
                self.add("_bucket", &[op, ("le", &bound)], count.clone());
            }
        }
        if let Value::Number(count) = &operation["count"] {
            self.add("_bucket", &[op, ("le", "+Inf")], count.clone());
        }
        self.times(&[op], operation);
    }

    fn times(&mut self, labels: &[(&str, &str)], value: &Value) {
        if let (Value::Number(sum), Value::Number(count)) = (&value["seconds"], &value["count"]) {
            self.add("_sum", labels, sum.clone());
            self.add("_count", labels, count.clone());
        }
    }

    fn write(&self, Figure { name, kind, help, .. }: &Figure, text: &mut String) {
        if self.lines.is_empty() {
            return;
        }
        let head = format!(
            "# HELP onefold_{name} {}\n# TYPE onefold_{name} {}\n",
            help.replace('\\', "\\\\").replace('\n', "\\n"),
            kind.name()
        );
        text.push_str(&head);
        for (key, value) in &self.lines {
            // Writing to a string does not fail.
            let _ = writeln!(text, "onefold_{name}{key} {value}");
        }
    }
}

fn times(number: &Number, factor: u64) -> Number {
    number.as_u64().map_or_else(|| number.clone(), |number| number.saturating_mul(factor).into())
}

fn sum(a: &Number, b: &Number) -> Number {
    match (a.as_u64(), b.as_u64()) {
        (Some(a), Some(b)) => a.saturating_add(b).into(),
        _ => {
            let sum = a.as_f64().unwrap_or(0.0) + b.as_f64().unwrap_or(0.0);
            Number::from_f64(sum).unwrap_or_else(|| a.clone())
        }
    }
}

/// The value of a label between its quotes.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use serde_json::json;

    use super::*;
    use crate::report::figures::Unit;

    /// Rule 37 of the design of block volumes: these names are for ever.
    const NAMES: [&str; 11] = [
        "client_written_bytes_total",
        "device_written_bytes_total",
        "flushes_total",
        "request_duration_seconds",
        "checkpoint_duration_seconds",
        "store_free_bytes",
        "store_used_bytes",
        "volume_mapped_bytes",
        "uncommitted_records",
        "writes_stopped",
        "build_info",
    ];

    #[test]
    fn names_tell_units_and_kinds() {
        let mut seen = HashSet::new();
        for Figure { name, kind, unit, help, sources, .. } in FIGURES {
            let of_name = |byte: u8| byte.is_ascii_lowercase() || byte == b'_';
            assert!(name.bytes().all(of_name) && seen.insert(*name), "{name}");
            assert_eq!(name.ends_with("_total"), *kind == Kind::Counter, "{name}");
            let stem = name.strip_suffix("_total").unwrap_or(name);
            assert_eq!(stem.ends_with("_bytes"), *unit == Unit::Bytes, "{name}");
            assert_eq!(stem.ends_with("_seconds"), *unit == Unit::Seconds, "{name}");
            assert!(!["_count", "_sum", "_bucket"].iter().any(|end| stem.ends_with(end)), "{name}");
            assert!(help.ends_with('.') && help.len() > 10 && !help.contains('|'), "{name}");
            assert!(!sources.is_empty(), "{name}");
            for source in *sources {
                assert!(!source.engines.is_empty() && source.at.starts_with('/'), "{name}");
            }
        }
        for name in NAMES {
            assert!(seen.contains(name), "{name}");
        }
    }

    #[test]
    fn names_of_volumes_are_escaped_and_end_nowhere_else() {
        let name = "a\"} 1\n# TYPE x\\y";
        let report = json!({ "engine": "block", "volumes": [{ "name": name, "bytes": 5 }] });
        let text = text(&report, Seen::ByOperator);
        let line = "onefold_volume_size_bytes{volume=\"a\\\"} 1\\n# TYPE x\\\\y\"} 5";
        assert_eq!(text.lines().last(), Some(line));
        assert_eq!(text.lines().count(), 3);
    }

    #[test]
    fn a_thousand_volumes_are_labelled_and_the_rest_is_other() {
        let names = (0..1002).map(|n| if n == 7 { "other".to_owned() } else { format!("v{n:04}") });
        let volumes: Vec<Value> = names.map(|name| json!({ "name": name, "bytes": 10 })).collect();
        let text = text(&json!({ "engine": "block", "volumes": volumes }), Seen::ByOperator);
        let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(lines.len(), 1000);
        // The volume of that name is among them.
        assert_eq!(lines[7], "onefold_volume_size_bytes{volume=\"other\"} 30");
    }

    #[test]
    fn what_an_engine_lacks_is_left_out() {
        let report = json!({ "engine": "cluster", "stopped": null, "space": { "free_bytes": 1 },
            "free_bytes": 2, "backlog": null, "server": { "nbd": null } });
        let text = text(&report, Seen::ByOperator);
        assert!(text.contains("onefold_store_free_bytes 2\n"), "{text}");
        assert!(!text.contains("writes_stopped") && !text.contains("backlog"), "{text}");
        assert!(text.contains("onefold_build_info{engine=\"cluster\"} 1\n"), "{text}");
    }

    #[test]
    fn blocks_are_shown_in_bytes_and_histograms_as_sums() {
        let report = json!({ "engine": "block", "server": {
            "writes": { "duplicate_blocks": 3 },
            "checkpoints": { "count": 2, "seconds": 0.5 },
            "nbd": { "durations": [{ "op": "read", "count": 4, "seconds": 1.5,
                "buckets": [{ "seconds": 0.001, "count": 1 }, { "seconds": 1.0, "count": 3 }] }] },
        } });
        let text = text(&report, Seen::ByOperator);
        for line in [
            "onefold_deduplicated_bytes_total 12288",
            "onefold_checkpoint_duration_seconds_sum 0.5",
            "onefold_checkpoint_duration_seconds_count 2",
            "onefold_request_duration_seconds_bucket{op=\"read\",le=\"0.001\"} 1",
            "onefold_request_duration_seconds_bucket{op=\"read\",le=\"1.0\"} 3",
            "onefold_request_duration_seconds_bucket{op=\"read\",le=\"+Inf\"} 4",
            "onefold_request_duration_seconds_sum{op=\"read\"} 1.5",
            "onefold_request_duration_seconds_count{op=\"read\"} 4",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
    }
}
