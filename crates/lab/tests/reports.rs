//! Pages of reports.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use onefold_lab::report::{Axis, Bars, Figure, Lines, Report, Scale, Section, Series, Statement, Table, Verdict};

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
        series: vec![Series { name: "thin".into(), points: vec![(8.0, 682.0), (32.0, 1999.0)] }, Series::default()],
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
    let table = Table { title: "Numbers".into(), columns: vec!["a".into()], rows: vec![vec!["1".into()], vec!["<b>".into()]] };
    let figures = vec![Figure::Lines(lines), Figure::Bars(bars), Figure::Table(table)];
    let section = Section { title: "One".into(), about: vec!["Two & three".into()], figures };
    let verdicts = [Verdict::Reproduced, Verdict::Better, Verdict::NotReproduced, Verdict::OutOfScope];
    Report { title: "A <title>".into(), about: Vec::new(), statements: verdicts.map(statement).to_vec(), sections: vec![section] }
}

#[test]
fn statements_are_counted_and_shown() {
    let report = report();
    assert_eq!(report.score(), (2, 3));
    let html = report.html();
    for text in
        ["A &lt;title&gt;", "2 of 3 reproduced or better", "2.73 times &lt;ordered&gt;", "not reproduced", "20,000", "fitted device"]
    {
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
