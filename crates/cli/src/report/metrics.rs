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
