//! A statement of a paper: the cases that it needs, its verdict, its plots.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeSet,
    ops::RangeInclusive,
    path::PathBuf,
};

use super::case::{Case, Measured, System};
use onefold_lab::report::{Axis, Figure, Lines, Series};

/// How much is run.
#[derive(Clone, Debug)]
pub(crate) struct Extent {
    /// In at most a minute.
    pub(crate) quick: bool,
    /// Recorded traces, if there are any.
    pub(crate) traces: Vec<PathBuf>,
    /// The configuration of a Ceph cluster with pools `paper-meta` and `paper-chunks` for the
    /// experiments alone, if there is one.
    pub(crate) cluster: Option<PathBuf>,
}

/// One thing that a paper states.
pub(crate) struct Item {
    /// Its short name, by which it is chosen: `3a`.
    pub(crate) id: &'static str,
    /// Its name in the paper.
    pub(crate) name: &'static str,
    /// The paper's statement.
    pub(crate) says: &'static str,
    /// Where it must lie.
    pub(crate) band: &'static str,
    /// The figure depends on devices that were fitted to the paper.
    pub(crate) fitted: bool,
    /// The constants that were fitted to the very figure that it is judged by, if there are any:
    /// then it never counts as reproduced.
    pub(crate) calibrated: Option<&'static str>,
    pub(super) cases: fn(&Extent) -> Vec<Case>,
    pub(super) judge: fn(&Extent, &Look<'_>) -> Judgement,
    pub(super) draw: fn(&Extent, &Look<'_>) -> Vec<Figure>,
}

/// On which side of a band values are good.
#[derive(Clone, Copy)]
pub(super) enum Good {
    Less,
    More,
    /// On neither.
    Inside,
}

/// The judgement of an item.
#[derive(Default)]
pub(super) struct Judgement {
    /// Each check: the wanted and the found value as text, and whether it holds.
    pub(super) checks: Vec<(String, bool)>,
    /// A remark for the reader.
    pub(super) remark: String,
    pub(super) out_of_scope: bool,
    /// The engine does not have what it needs.
    pub(super) missing: bool,
    /// Some of what holds does so beyond the band, on the good side.
    pub(super) better: bool,
    /// Blocks that were processed besides those of cases.
    pub(super) blocks: u64,
    /// Figures of an item that measures by itself.
    pub(super) figures: Vec<Figure>,
}

impl Judgement {
    pub(super) fn check(&mut self, text: impl Into<String>, holds: bool) {
        self.checks.push((text.into(), holds));
    }

    /// Checks that a value lies in a band, or beyond it on the good side: that is better.
    pub(super) fn band(
        &mut self,
        text: impl Into<String>,
        value: f64,
        band: RangeInclusive<f64>,
        good: Good,
    ) {
        let beyond = match good {
            Good::Less => value < *band.start(),
            Good::More => value > *band.end(),
            Good::Inside => false,
        };
        self.better |= beyond;
        let text = text.into();
        self.checks.push((
            if beyond { format!("{text} (better)") } else { text },
            beyond || band.contains(&value),
        ));
    }

    pub(super) fn missed(&self) -> bool {
        self.checks.iter().any(|check| !check.1)
    }
}

/// The measured cases; records which of them an item looked at.
pub(super) struct Look<'a> {
    measured: &'a [(Case, Option<Measured>)],
    pub(super) used: RefCell<BTreeSet<usize>>,
    /// Something was looked for that the engine can't run.
    pub(super) missing: Cell<bool>,
}

impl<'a> Look<'a> {
    /// At these; those without figures can't be run.
    pub(super) fn new(measured: &'a [(Case, Option<Measured>)]) -> Look<'a> {
        Look { measured, used: RefCell::default(), missing: Cell::new(false) }
    }

    pub(super) fn at(&self, case: &Case) -> Option<&Measured> {
        let place = self.measured.iter().position(|(known, _)| known == case)?;
        let found = self.measured[place].1.as_ref();
        match found {
            Some(_) => drop(self.used.borrow_mut().insert(place)),
            None => self.missing.set(true),
        }
        found
    }

    /// A number of a case; one that was not measured is no number, and fails every comparison.
    pub(super) fn value(&self, case: &Case, of: impl Fn(&Measured) -> f64) -> f64 {
        self.at(case).map_or(f64::NAN, of)
    }

    /// Blocks a second, checkpoints left out.
    pub(super) fn speed(&self, case: &Case) -> f64 {
        self.value(case, |measured| measured.throughput)
    }

    /// Blocks a second, checkpoints included.
    pub(super) fn speed_with_checkpoints(&self, case: &Case) -> f64 {
        self.value(case, |measured| measured.throughput_with_checkpoints)
    }

    /// One speed over another, checkpoints left out and included.
    pub(super) fn ratio(&self, over: &Case, under: &Case) -> (f64, f64) {
        (
            self.speed(over) / self.speed(under),
            self.speed_with_checkpoints(over) / self.speed_with_checkpoints(under),
        )
    }
}

/// The least; not a number when one of them is none.
pub(super) fn least(values: &[f64]) -> f64 {
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    if values.iter().any(|value| value.is_nan()) { f64::NAN } else { least }
}

/// The most; likewise.
pub(super) fn most(values: &[f64]) -> f64 {
    -least(&values.iter().map(|value| -value).collect::<Vec<f64>>())
}

/// No cases.
pub(super) fn nothing(_: &Extent) -> Vec<Case> {
    Vec::new()
}

/// No figures but the table.
pub(super) fn no_figure(_: &Extent, _: &Look<'_>) -> Vec<Figure> {
    Vec::new()
}

/// Lines with marks.
pub(super) fn plot(title: impl Into<String>, x: Axis, y: Axis, series: Vec<Series>) -> Figure {
    Figure::Lines(Lines { title: title.into(), x, y, series, steps: false, note: String::new() })
}

/// A line of blocks a second for each system.
pub(super) fn over(
    look: &Look<'_>,
    title: &str,
    x: Axis,
    xs: &[f64],
    systems: &[System],
    of: fn(&Measured) -> f64,
    case: impl Fn(f64, System) -> Case,
) -> Figure {
    let line = |&system: &System| Series {
        name: system.name().to_owned(),
        points: xs.iter().map(|&at| (at, look.value(&case(at, system), of))).collect(),
    };
    plot(title, x, Axis::linear("blocks a second"), systems.iter().map(line).collect())
}
