//! The page of a report.

use std::fmt::Write;

use super::{
    Figure, Report, Section, Statement, Table, Verdict,
    svg::{self, escaped, sample},
};

/// The look of the page, which loads nothing from the network.
const STYLE: &str = "
:root{--ink:#1b1b1b;--soft:#5b5b5b;--paper:#fff;--line:#d8d8d8;--good:#00694b;--bad:#a63d00;\
                     color-scheme:light dark}
@media(prefers-color-scheme:dark){:root{--ink:#e8e8e8;--soft:#a8a8a8;--paper:#161616;\
                     --line:#3a3a3a;--good:#4fd1a5;--bad:#ff9d5c}}
body{font:16px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);margin:2rem auto;\
                     max-width:78rem;padding:0 1.5rem}
h1{font-size:1.7rem;margin-bottom:.3rem}h2{font-size:1.3rem;margin-top:2.5rem;\
                     border-bottom:1px solid var(--line)}
p{max-width:60rem}.soft,figcaption small{color:var(--soft)}
.figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(34rem,100%),1fr));gap:1.5rem}
figure{margin:0;border:1px solid var(--line);border-radius:6px;padding:.8rem;\
                     min-width:0}figure.wide{grid-column:1/-1}
figcaption{font-weight:600;margin-bottom:.4rem}figcaption small{display:block;font-weight:400}
.legend{display:flex;flex-wrap:wrap;gap:.2rem 1.2rem;list-style:none;padding:0;margin:.3rem 0 0;\
                     font-size:.9rem}
.legend li{display:flex;align-items:center;gap:.45rem}
svg.plot{width:100%;height:auto;display:block}svg.plot text{fill:var(--ink);font-family:system-ui,\
                     sans-serif}
.grid{stroke:var(--line)}.axis{stroke:var(--soft)}.mark{stroke:var(--ink);stroke-width:2.5;\
                     stroke-dasharray:5 3}
.scroll{overflow-x:auto}table{border-collapse:collapse;font-size:.9rem;width:100%}
th,td{text-align:left;padding:.3rem .6rem;border-bottom:1px solid var(--line);\
                     vertical-align:top}.n{text-align:right}figure td{white-space:nowrap}td.n{font-variant-numeric:tabular-nums;white-space:nowrap}
.good{color:var(--good);font-weight:600}.bad{color:var(--bad);font-weight:600}";

/// The meaning of the verdicts.
const WORDS: &str = "Reproduced: inside the band. Better: beyond it, on the good side. Calibrated: \
                     inside it, but a constant of the model was fitted to the same figure, so that \
                     it counts for nothing. Missed: outside, on the bad side. Not run: what it \
                     needs was not there.";

/// The whole page.
pub(super) fn page(report: &Report) -> String {
    let title = escaped(&report.title);
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width\"><title>{title}</title><style>{STYLE}</style></\
         head><body><h1>{title}</h1>\n"
    );
    paragraphs(&mut out, &report.about);
    if !report.statements.is_empty() {
        statements(&mut out, report);
    }
    report.sections.iter().for_each(|part| section(&mut out, part));
    out.push_str("</body></html>\n");
    out
}

fn paragraphs(out: &mut String, about: &[String]) {
    for text in about {
        let _ = writeln!(out, "<p>{}</p>", escaped(text));
    }
}

fn statements(out: &mut String, report: &Report) {
    let score = report.score();
    let _ = writeln!(
        out,
        "<h2>Statements</h2><p>{score}.</p><p class=\"soft\">{WORDS}</p><div \
         class=\"scroll\"><table><thead><tr>"
    );
    for name in ["", "Statement", "Here", "Band", "Verdict"] {
        let _ = write!(out, "<th scope=\"col\">{name}</th>");
    }
    out.push_str(
        "<th scope=\"col\" class=\"n\">Blocks</th><th scope=\"col\" class=\"n\">Seconds</th>",
    );
    out.push_str("</tr></thead><tbody>\n");
    for Statement { item, says, found, band, verdict, remark, fitted, blocks, wall_seconds } in
        &report.statements
    {
        let class = match verdict {
            Verdict::Reproduced | Verdict::Better => "good",
            Verdict::Missed => "bad",
            Verdict::Calibrated | Verdict::NotRun | Verdict::OutOfScope => "soft",
        };
        let word = verdict.word();
        let note = if *fitted { "<br><span class=\"soft\">fitted device</span>" } else { "" };
        let remark = if remark.is_empty() {
            String::new()
        } else {
            format!("<br><span class=\"soft\">{}</span>", escaped(remark))
        };
        let _ = writeln!(
            out,
            "<tr><th scope=\"row\">{}</th><td>{}</td><td>{}{remark}</td><td>{}</td><td \
             class=\"{class}\">{word}{note}</td><td class=\"n\">{}</td><td \
             class=\"n\">{wall_seconds:.1}</td></tr>",
            escaped(item),
            escaped(says),
            escaped(found),
            escaped(band),
            svg::shown(*blocks as f64)
        );
    }
    out.push_str("</tbody></table></div>\n");
}

fn section(out: &mut String, section: &Section) {
    let _ = writeln!(out, "<h2>{}</h2>", escaped(&section.title));
    paragraphs(out, &section.about);
    out.push_str("<div class=\"figures\">\n");
    for figure in &section.figures {
        match figure {
            Figure::Lines(plot) => {
                let names =
                    plot.series.iter().map(|series| series.name.as_str()).collect::<Vec<_>>();
                drawn(
                    out,
                    &plot.title,
                    &plot.note,
                    &svg::lines(plot),
                    &names,
                    false,
                    !plot.steps,
                    None,
                );
            }
            Figure::Bars(plot) => {
                let names = plot.series.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>();
                let mark = plot.mark.as_ref().map(|(name, _)| name.as_str());
                drawn(out, &plot.title, &plot.note, &svg::bars(plot), &names, true, false, mark);
            }
            Figure::Table(table) => tabled(out, table),
        }
    }
    out.push_str("</div>\n");
}

#[allow(clippy::too_many_arguments, reason = "two callers, beside each other")]
fn drawn(
    out: &mut String,
    title: &str,
    note: &str,
    plot: &str,
    names: &[&str],
    bar: bool,
    marked: bool,
    mark: Option<&str>,
) {
    let note =
        if note.is_empty() { String::new() } else { format!("<small>{}</small>", escaped(note)) };
    let _ = write!(
        out,
        "<figure><figcaption>{}{note}</figcaption>{plot}<ul class=\"legend\">",
        escaped(title)
    );
    for (n, name) in names.iter().enumerate() {
        let _ = write!(out, "<li>{}{}</li>", sample(n, bar, marked), escaped(name));
    }
    if let Some(mark) = mark {
        let line = "<svg width=\"34\" height=\"12\" aria-hidden=\"true\"><line class=\"mark\" \
                    x1=\"0\" y1=\"6\" x2=\"34\" y2=\"6\"/></svg>";
        let _ = write!(out, "<li>{line}{}</li>", escaped(mark));
    }
    out.push_str("</ul></figure>\n");
}

fn tabled(out: &mut String, table: &Table) {
    let _ = write!(
        out,
        "<figure class=\"wide\"><figcaption>{}</figcaption><div \
         class=\"scroll\"><table><thead><tr>",
        escaped(&table.title)
    );
    let number =
        |cell: &String| cell.starts_with(|c: char| c.is_ascii_digit() || "+−-".contains(c));
    let class = |number| if number { " class=\"n\"" } else { "" };
    for (n, name) in table.columns.iter().enumerate() {
        let numbers = table.rows.iter().filter_map(|row| row.get(n)).any(number);
        let _ = write!(out, "<th scope=\"col\"{}>{}</th>", class(numbers), escaped(name));
    }
    out.push_str("</tr></thead><tbody>\n");
    for row in &table.rows {
        out.push_str("<tr>");
        for cell in row {
            let _ = write!(out, "<td{}>{}</td>", class(number(cell)), escaped(cell));
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody></table></div></figure>\n");
}
