//! Reports: figures as one HTML file that needs nothing else.
//!
//! The data of a report ([`Report`]) are independent of what they show, so that the same page
//! serves a user's trace, a sweep, and the figures of a paper beside what the paper says
//! ([`Statement`]). `html` makes the page, `svg` its plots; `of` makes reports from results.

mod html;
mod of;
mod svg;

use std::fmt;

use serde::{Deserialize, Serialize};

pub use of::{distribution, of_points, of_replays};
pub use svg::shown as number;

/// A page.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Its title.
    pub title: String,
    /// How the figures were made and how to read them, in paragraphs.
    pub about: Vec<String>,
    /// Statements of a paper, each with the finding beside it.
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

/// An axis of a plot.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Axis {
    /// The quantity, with its unit.
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
    /// The quantity that is compared.
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
    /// The quantity that is compared.
    pub title: String,
    /// The axis of the measured values.
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
    /// The title.
    pub title: String,
    /// Names of the columns.
    pub columns: Vec<String>,
    /// Rows, as they are printed.
    pub rows: Vec<Vec<String>>,
}

/// A statement of a paper, beside the finding here.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Statement {
    /// Where it stands, like a figure's number.
    pub item: String,
    /// The statement.
    pub says: String,
    /// The finding.
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

/// The verdict on a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    /// The figure is inside the band.
    Reproduced,
    /// The figure is beyond the band, on the good side.
    Better,
    /// The figure is inside the band, but a constant of the model was fitted to that very figure:
    /// the statement does not count.
    Calibrated,
    /// The figure is outside of the band.
    Missed,
    /// A tool or machine that the experiment needs was missing.
    NotRun,
    /// The experiment can't be done here.
    OutOfScope,
}

/// How many statements came to which verdict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Score {
    /// Found inside their bands.
    pub reproduced: usize,
    /// Found beyond their bands, on the good side.
    pub better: usize,
    /// Found, with a constant that was fitted to the same figure.
    pub calibrated: usize,
    /// Looked at, and not found.
    pub missed: usize,
    /// Statements whose tools or machines were missing.
    pub not_run: usize,
    /// They can't be looked at here.
    pub out_of_scope: usize,
    /// Statements that were looked at: the first four.
    pub possible: usize,
}

impl Score {
    fn count(&mut self, verdict: Verdict) {
        let counter = match verdict {
            Verdict::Reproduced => &mut self.reproduced,
            Verdict::Better => &mut self.better,
            Verdict::Calibrated => &mut self.calibrated,
            Verdict::Missed => &mut self.missed,
            Verdict::NotRun => &mut self.not_run,
            Verdict::OutOfScope => &mut self.out_of_scope,
        };
        *counter += 1;
        self.possible += usize::from(!matches!(verdict, Verdict::NotRun | Verdict::OutOfScope));
    }
}

impl fmt::Display for Score {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} reproduced and {} better, of {} that were looked at",
            self.reproduced, self.better, self.possible
        )?;
        let others = [
            (self.calibrated, Verdict::Calibrated),
            (self.missed, Verdict::Missed),
            (self.not_run, Verdict::NotRun),
        ];
        for (count, verdict) in others
            .into_iter()
            .chain([(self.out_of_scope, Verdict::OutOfScope)])
            .filter(|other| other.0 > 0)
        {
            write!(f, ", {count} {}", verdict.word())?;
        }
        Ok(())
    }
}

impl Verdict {
    /// In words.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Verdict::Reproduced => "reproduced",
            Verdict::Better => "better",
            Verdict::Calibrated => "calibrated",
            Verdict::Missed => "missed",
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

    /// How many statements came to which verdict.
    #[must_use]
    pub fn score(&self) -> Score {
        let mut score = Score::default();
        self.statements.iter().for_each(|statement| score.count(statement.verdict));
        score
    }
}
