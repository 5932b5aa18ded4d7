//! Reports: figures as one HTML file that needs nothing else.
//!
//! The data of a report ([`Report`]) are independent of what they show, so that the same page serves a user's trace, a sweep, and the
//! figures of a paper beside what the paper says ([`Statement`]). `html` makes the page, `svg` its plots; `of` makes reports from results.

mod html;
mod of;
mod svg;

use serde::{Deserialize, Serialize};

pub(crate) use of::distribution;
pub use of::{of_points, of_replays};
pub(crate) use svg::shown as number;

/// A page.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Its title.
    pub title: String,
    /// What was done, and what to think of it: paragraphs.
    pub about: Vec<String>,
    /// What somebody said, and what came out.
    pub statements: Vec<Statement>,
    /// The figures.
    pub sections: Vec<Section>,
}

/// Figures that belong together.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Section {
    /// Its title.
    pub title: String,
    /// Paragraphs before the figures.
    pub about: Vec<String>,
    /// The figures.
    pub figures: Vec<Figure>,
}

/// One figure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Figure {
    /// Lines over an axis.
    Lines(Lines),
    /// Groups of bars.
    Bars(Bars),
    /// A table.
    Table(Table),
}

/// What an axis shows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Axis {
    /// What, with its unit.
    pub label: String,
    /// How numbers are spread along it.
    pub scale: Scale,
}

impl Axis {
    /// Even, from zero on.
    #[must_use]
    pub fn linear(label: impl Into<String>) -> Axis {
        Axis { label: label.into(), scale: Scale::Linear }
    }

    /// By logarithms.
    #[must_use]
    pub fn logarithmic(label: impl Into<String>) -> Axis {
        Axis { label: label.into(), scale: Scale::Logarithmic }
    }
}

/// How numbers are spread along an axis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Scale {
    /// Evenly, from zero on.
    #[default]
    Linear,
    /// By their logarithms.
    Logarithmic,
}

/// Lines over an axis.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Lines {
    /// What it shows.
    pub title: String,
    /// The axes.
    pub x: Axis,
    /// See there.
    pub y: Axis,
    /// One line each.
    pub series: Vec<Series>,
    /// Lines rise in steps, as distributions do, and carry no marks.
    pub steps: bool,
    /// A remark below.
    pub note: String,
}

/// A line.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// Its name in the legend.
    pub name: String,
    /// Its points, from left to right.
    pub points: Vec<(f64, f64)>,
}

/// Groups of bars.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Bars {
    /// What it shows.
    pub title: String,
    /// What is measured.
    pub y: Axis,
    /// The groups along the other axis.
    pub groups: Vec<String>,
    /// The bars of each group: a name, and a height for each group, if there is one.
    pub series: Vec<(String, Vec<Option<f64>>)>,
    /// A mark over each group: its name, and its height there.
    pub mark: Option<(String, Vec<f64>)>,
    /// A remark below.
    pub note: String,
}

/// A table of numbers and words.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Table {
    /// What it shows.
    pub title: String,
    /// Names of the columns.
    pub columns: Vec<String>,
    /// Rows, as they are printed.
    pub rows: Vec<Vec<String>>,
}

/// What somebody stated, beside what was found here.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Statement {
    /// Where it stands, like a figure's number.
    pub item: String,
    /// What is stated.
    pub says: String,
    /// What was found.
    pub found: String,
    /// When it counts as reproduced.
    pub band: String,
    /// Whether it is.
    pub verdict: Verdict,
    /// Why not, or what to know.
    pub remark: String,
    /// The figure hangs on a device fitted to the same paper.
    pub fitted: bool,
    /// Blocks that were processed for it.
    pub blocks: u64,
    /// Real seconds that this took.
    pub wall_seconds: f64,
}

/// What became of a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    /// It was found inside the band.
    Reproduced,
    /// It was found outside, on the better side.
    Better,
    /// It was not found.
    NotReproduced,
    /// What it needs is not there yet.
    NotRun,
    /// It can't be looked at here.
    OutOfScope,
}

impl Verdict {
    /// In words.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Verdict::Reproduced => "reproduced",
            Verdict::Better => "better",
            Verdict::NotReproduced => "not reproduced",
            Verdict::NotRun => "not run",
            Verdict::OutOfScope => "out of scope",
        }
    }
}

impl Report {
    /// The page.
    #[must_use]
    pub fn html(&self) -> String {
        html::page(self)
    }

    /// Statements that were reproduced or better, and those that could be looked at.
    #[must_use]
    pub fn score(&self) -> (usize, usize) {
        let good = self.statements.iter().filter(|statement| matches!(statement.verdict, Verdict::Reproduced | Verdict::Better));
        let possible = self.statements.iter().filter(|statement| !matches!(statement.verdict, Verdict::NotRun | Verdict::OutOfScope));
        (good.count(), possible.count())
    }
}
