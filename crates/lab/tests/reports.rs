//! Pages of reports.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use onefold_lab::report::{
    Axis, Bars, Figure, Lines, Report, Scale, Section, Series, Statement, Table, Verdict,
};

fn statement(verdict: Verdict) -> Statement {
    Statement {
        item: "Fig 3a".into(),
        says: "2.73 times <ordered>".into(),
        found: "2.71".into(),
        band: "≥ 2.5 & no less".into(),
        verdict,
        remark: "window 32".into(),
        fitted: true,
        blocks: 20_000,
        wall_seconds: 0.25,
    }
}

fn report() -> Report {
    let lines = Lines {
        title: "Throughput".into(),
        x: Axis { label: "blocks of a window".into(), scale: Scale::Logarithmic },
        y: Axis { label: "blocks a second".into(), scale: Scale::Linear },
        series: vec![
            Series { name: "thin".into(), points: vec![(8.0, 682.0), (32.0, 1999.0)] },
            Series::default(),
        ],
        steps: false,
        note: String::new(),
    };
    let bars = Bars {
        title: "Volume".into(),
        groups: vec!["apt".into(), "pgbench".into()],
        series: vec![("thin".into(), vec![Some(84.7), None])],
        mark: Some(("ideal".into(), vec![83.6, 62.3])),
        ..Bars::default()
    };
    let table = Table {
        title: "Numbers".into(),
        columns: vec!["a".into()],
        rows: vec![vec!["1".into()], vec!["<b>".into()]],
    };
    let figures = vec![Figure::Lines(lines), Figure::Bars(bars), Figure::Table(table)];
    let section = Section { title: "One".into(), about: vec!["Two & three".into()], figures };
    let verdicts = [
        Verdict::Reproduced,
        Verdict::Better,
        Verdict::Calibrated,
        Verdict::Missed,
        Verdict::NotRun,
        Verdict::OutOfScope,
    ];
    Report {
        title: "A <title>".into(),
        about: Vec::new(),
        statements: verdicts.map(statement).to_vec(),
        sections: vec![section],
    }
}

#[test]
fn statements_are_counted_and_shown() {
    let report = report();
    let score = report.score();
    assert_eq!(
        (score.reproduced, score.better, score.calibrated, score.missed, score.possible),
        (1, 1, 1, 1, 4)
    );
    let told = "1 reproduced and 1 better, of 4 that were looked at, 1 calibrated, 1 missed, 1 not \
                run, 1 out of scope";
    assert_eq!(score.to_string(), told);
    let html = report.html();
    for text in [
        "A &lt;title&gt;",
        told,
        "2.73 times &lt;ordered&gt;",
        ">missed<",
        ">calibrated<",
        ">better<",
        "20,000",
        "fitted device",
    ] {
        assert!(html.contains(text), "{text}");
    }
    assert!(!html.contains("<b>") && html.contains("&lt;b&gt;"));
}

#[test]
fn a_report_is_data() {
    let report = report();
    let text = serde_json::to_string(&report).unwrap();
    assert_eq!(serde_json::from_str::<Report>(&text).unwrap(), report);
    assert!(Report::default().html().contains("</html>"));
}
