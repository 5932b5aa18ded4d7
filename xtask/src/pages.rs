//! The laboratory's pages, and that of a served store, in headless Chromium. Of the former: each label lies within its plot and overlaps no
//! other, each plot has a legend and units, and nothing is wider than the window. Screenshots stay
//! beside the pages, to be looked at.

mod served;

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::{
    machine, packages, paper,
    product::{Build, Onefold, path},
    program::{program, run as run_program},
    test::Tally,
};

/// Longest that the browser may take for a page.
const LIMIT: Duration = Duration::from_secs(120);

/// Windows in which pages are looked at: a desktop's, as high as a browser draws, and a narrow one,
/// where figures are below each other.
const WINDOWS: [(u32, u32); 2] = [(1400, 16_000), (700, 4000)];

/// Put at the end of a page: looks at it, and leaves what it finds in the page.
const LOOK: &str = include_str!("pages.js");

/// A page with everything wrong that is looked for.
const WRONG: &str = r#"<html><body><div style="width:3000px">wide</div><figure><figcaption>Wrong</figcaption>
<svg class="plot" viewBox="0 0 640 360" width="640"><text x="10" y="50">one</text><text x="12" y="52">two</text><text x="630" y="90">beyond the plot</text>
<text x="10" y="90" font-size="3">small</text><text x="90" y="200"> </text><path d="MNaN 1"/></svg></figure></body></html>"#;

/// The faults of that page.
const FAULTS: [&str; 8] = [
    "overlap",
    "beyond the plot",
    "too small",
    "empty label",
    "without a unit",
    "no legend",
    "drawn nowhere",
    "wide in a window",
];

/// Looks at every kind of page, and first at one in which everything is wrong.
pub(crate) fn run() -> Result<Tally> {
    packages::ensure()?;
    let mut tally = Tally::default();
    served::run(&mut tally)?;
    let pages = pages()?;
    let wrong = directory().join("wrong.html");
    fs::write(&wrong, WRONG)?;
    let (_, problems) = look(&wrong, WINDOWS[1])?;
    let missed: Vec<&&str> = FAULTS
        .iter()
        .filter(|fault| !problems.iter().any(|problem| problem.contains(**fault)))
        .collect();
    ensure!(
        missed.is_empty(),
        "a page with faults is looked at, and these are not found: {missed:?}; found: {problems:?}"
    );
    tally.passed += FAULTS.len();
    for page in pages {
        for window in WINDOWS {
            let (plots, problems) = look(&page, window)?;
            let name = page.strip_prefix(machine::root()).unwrap_or(&page).display();
            println!("{name}, {} wide: {plots} plots, {} problems", window.0, problems.len());
            problems.iter().take(10).for_each(|problem| println!("    {problem}"));
            ensure!(plots > 0, "{name} has no plots");
            tally.passed += usize::from(problems.is_empty());
            tally.failed += usize::from(!problems.is_empty());
        }
    }
    tally.note = "screenshots in target/paper".into();
    Ok(tally)
}

/// Where pages go that are not a paper's.
fn directory() -> PathBuf {
    paper::directory("pages")
}

/// The pages of the papers, of a replay and of a sweep; those that are not there are made.
fn pages() -> Result<Vec<PathBuf>> {
    let mut pages: Vec<PathBuf> =
        paper::names().map(|name| paper::directory(name).join("report.html")).to_vec();
    if !pages.iter().all(|page| page.exists()) {
        paper::short()?;
    }
    let laboratory = Onefold::laboratory(Build::Test)?;
    let made = directory();
    fs::create_dir_all(&made)?;
    let trace = machine::root().join("crates/lab/data/pgbench.dtrace.zst");
    let (replay, sweep) = (made.join("replay.html"), made.join("sweep.html"));
    let schemes = "original,ordered,cow,thin";
    let replayed = [
        "replay",
        path(&trace),
        "--records",
        "15000",
        "--scheme",
        schemes,
        "--persistence",
        "weak,strong",
        "--report",
    ];
    let swept = [
        "sweep",
        "--blocks",
        "1000",
        "--window",
        "8,32,128",
        "--device",
        "ssd-p,hdd-p",
        "--scheme",
        "ideal,thin,ordered",
        "--report",
    ];
    for (arguments, page) in [(&replayed[..], &replay), (&swept[..], &sweep)] {
        run_program(laboratory.command([arguments, &[path(page)]].concat()), LIMIT)?;
    }
    pages.extend([replay, sweep]);
    Ok(pages)
}

/// Opens a page, takes a picture of it, and returns how many plots it has and what is wrong with
/// them.
fn look(page: &Path, (width, height): (u32, u32)) -> Result<(u64, Vec<String>)> {
    let html = fs::read_to_string(page)?;
    let watched = page.with_extension("watched.html");
    fs::write(&watched, html.replace("</body>", &format!("<script>{LOOK}</script></body>")))?;
    let dom =
        browse(path(&watched), (width, height), &page.with_extension(format!("{width}.png")), &[])?;
    fs::remove_file(&watched)?;
    found_in(&dom)
}

/// What a page has, and what is wrong with it, as what looked at it has left it there.
fn found_in(dom: &str) -> Result<(u64, Vec<String>)> {
    let found = dom
        .split_once("<pre id=\"look\"")
        .and_then(|(_, rest)| rest.split_once('>'))
        .and_then(|(_, rest)| rest.split_once("</pre>"));
    let text = found.context("the browser did not look at the page")?.0;
    let found: Value = serde_json::from_str(
        &text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"),
    )?;
    let problems = found["problems"].as_array().context("nothing was looked for")?;
    Ok((
        found["plots"].as_u64().unwrap_or(0),
        problems.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
    ))
}

/// Opens a page, takes a picture of it, and returns what it became, and what else the browser says.
fn browse(
    page: &str,
    (width, height): (u32, u32),
    picture: &Path,
    more: &[String],
) -> Result<String> {
    let mut command = program("chromium");
    // No sandbox: the superuser's browser has none, and the pages are ours.
    command.args([
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        "--virtual-time-budget=1000",
        "--dump-dom",
    ]);
    command
        .arg(format!("--user-data-dir={}", path(&directory().join("browser"))))
        .arg(format!("--window-size={width},{height}"))
        .arg(format!("--screenshot={}", path(picture)))
        .args(more)
        .arg(page);
    run_program(command, LIMIT)
}
