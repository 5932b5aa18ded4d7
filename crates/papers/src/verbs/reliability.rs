//! `onefold-lab reliability`: space and time to data loss, when hot and cold chunks have codes of
//! their own.

use std::path::PathBuf;

use clap::Args;
use onefold_lab::{
    rad::reliability::{Codes, Disks, Tuple},
    report::{Axis, Figure, Lines, Report, Section, Series},
};
use serde::Serialize;

use super::replay::write_page;
use onefold_console::{failure::Failure, output};

/// Compares one erasure code for all chunks with a long one for chunks of few references and a
/// short one for those of many
///
/// Every code has two chunks of parity. As in the RAD paper, a tuple is three lengths of stripes:
/// cold, baseline, hot; alpha is the share of hot chunks. RAD is better in space below one share,
/// and in mean time to data loss above another. The paper averages shares of user data, and times;
/// averages that add up physically, of raw bytes and of loss rates, are named so.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
                  onefold-lab reliability --codes 14,10,6\n  \
                  onefold-lab reliability --codes 14,10,6 --codes 20,12,5 --alpha 0.2 --report \
                  page.html\n  \
                  onefold-lab reliability --codes 14,10,6 --json")]
pub(crate) struct Options {
    /// Lengths of stripes of cold chunks, of the baseline, of hot chunks; several times for
    /// several tuples
    #[arg(long, required = true, value_name = "A,B,C", value_parser = codes)]
    codes: Vec<Codes>,

    /// Mean time to failure of a disk, in hours
    #[arg(long, default_value_t = Disks::default().mttf_hours, value_name = "HOURS")]
    mttf: f64,

    /// Mean time to repair, in hours
    #[arg(long, default_value_t = Disks::default().mttr_hours, value_name = "HOURS")]
    mttr: f64,

    /// Tells RAD's space and time for this share of hot chunks, from 0 to 1
    #[arg(long, value_name = "SHARE")]
    alpha: Option<f64>,

    /// Writes a page with plots over alpha
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,

    /// Prints JSON, whose keys are stable
    #[arg(long)]
    json: bool,
}

fn codes(text: &str) -> Result<Codes, String> {
    let numbers: Vec<u32> =
        text.split(',').map_while(|number| number.trim().parse().ok()).collect();
    match numbers[..] {
        [cold, baseline, hot] if text.split(',').count() == 3 => Ok(Codes { cold, baseline, hot }),
        _ => Err("codes are three lengths of stripes A,B,C: cold, baseline, hot".to_owned()),
    }
}

#[derive(Serialize)]
struct Told {
    #[serde(flatten)]
    disks: Disks,
    tuples: Vec<At>,
}

#[derive(Serialize)]
struct At {
    #[serde(flatten)]
    tuple: Tuple,
    #[serde(skip_serializing_if = "Option::is_none")]
    alpha: Option<f64>,
    /// RAD's, at that share.
    #[serde(skip_serializing_if = "Option::is_none")]
    storage: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mttdl_hours: Option<f64>,
}

/// Computes and prints.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    if options.alpha.is_some_and(|alpha| !(0.0..=1.0).contains(&alpha)) {
        return Err(Failure::usage("--alpha is a share from 0 to 1"));
    }
    let disks = Disks { mttf_hours: options.mttf, mttr_hours: options.mttr };
    let at = |&codes: &Codes| -> Result<At, Failure> {
        let tuple = codes.compare(disks)?;
        let (storage, mttdl_hours) = (
            options.alpha.map(|alpha| codes.storage(alpha)),
            options.alpha.map(|alpha| codes.mttdl_hours(alpha, disks)),
        );
        Ok(At { tuple, alpha: options.alpha, storage, mttdl_hours })
    };
    let told = Told { disks, tuples: options.codes.iter().map(at).collect::<Result<_, _>>()? };
    if let Some(path) = &options.report {
        write_page(path, &page(&told))?;
    }
    if options.json {
        output::json(&told)?;
    } else {
        told.tuples.iter().for_each(print);
    }
    Ok(())
}

fn print(at: &At) {
    let Tuple {
        codes: Codes { cold, baseline, hot }, baseline_storage, baseline_mttdl_hours, ..
    } = at.tuple;
    let [low, high, loss, raw] = at.tuple.crossings;
    output::line(format_args!(
        "codes {cold},{baseline},{hot}: the baseline uses {:.1} % of the space for data, and loses \
         data after {baseline_mttdl_hours:.3e} hours",
        baseline_storage * 100.0
    ));
    let range = |name: &str, low: f64, high: f64| {
        let both = if low < high {
            format!("both from {low:.3} to {high:.3}")
        } else {
            "never both".to_owned()
        };
        output::line(format_args!(
            "  {name:<9} less space below alpha {high:.3}, later loss above {low:.3}: {both}"
        ));
    };
    range("paper", low, high);
    range("physical", loss, raw);
    if let (Some(alpha), Some(storage), Some(hours)) = (at.alpha, at.storage, at.mttdl_hours) {
        output::line(format_args!(
            "  at alpha {alpha}: {:.1} % of the space for data, {hours:.3e} hours",
            storage * 100.0
        ));
    }
}

/// The paper's Figure 10.
fn page(told: &Told) -> Report {
    let over = |of: &dyn Fn(f64) -> f64| {
        (0..=50).map(|n| f64::from(n) / 50.0).map(|alpha| (alpha, of(alpha))).collect::<Vec<_>>()
    };
    let section = |at: &At| {
        let tuple = &at.tuple;
        let Codes { cold, baseline, hot } = tuple.codes;
        let lines = |title: &str, y: Axis, same: f64, rad: Vec<(f64, f64)>| {
            let series = vec![
                Series { name: format!("baseline, {baseline}"), points: over(&|_| same) },
                Series { name: format!("RAD, {cold} and {hot}"), points: rad },
            ];
            Figure::Lines(Lines {
                title: title.to_owned(),
                x: Axis::linear("alpha, the share of hot chunks"),
                y,
                series,
                steps: true,
                note: String::new(),
            })
        };
        Section {
            title: format!("Codes {cold}, {baseline}, {hot}"),
            about: Vec::new(),
            figures: vec![
                lines(
                    "Storage utilisation",
                    Axis::linear("share of user data"),
                    tuple.baseline_storage,
                    over(&|alpha| tuple.codes.storage(alpha)),
                ),
                lines(
                    "Mean time to data loss",
                    Axis::logarithmic("hours"),
                    tuple.baseline_mttdl_hours,
                    over(&|alpha| tuple.codes.mttdl_hours(alpha, told.disks)),
                ),
            ],
        }
    };
    Report {
        title: "Space and reliability of RAD".to_owned(),
        about: vec![format!(
            "Disks fail after {} hours and are repaired in {}; every code has two chunks of \
             parity.",
            told.disks.mttf_hours, told.disks.mttr_hours
        )],
        statements: Vec::new(),
        sections: told.tuples.iter().map(section).collect(),
    }
}
