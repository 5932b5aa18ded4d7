//! Plots as SVG text: sizes are in units of the drawing, which the page scales.

use std::fmt::Write;

use super::{Axis, Bars, Lines, Scale};

/// Size of a drawing, and the room around what is plotted.
const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 360.0;
const LEFT: f64 = 78.0;
const RIGHT: f64 = 18.0;
const TOP: f64 = 16.0;
const BOTTOM: f64 = 58.0;

/// Colours that people with any sight can tell apart (Okabe and Ito), each with a dash and a mark
/// of its own for paper without colours.
pub(super) const COLOURS: [&str; 7] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#666666"];
const DASHES: [&str; 7] = ["none", "7 3", "2 3", "9 3 2 3", "12 4", "4 2", "1 2"];

/// Most ticks of an axis.
const TICKS_MAX: f64 = 6.0;

/// Text as it may stand in HTML and SVG.
pub(super) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// The colour of the `n`-th series.
pub(super) fn colour(n: usize) -> &'static str {
    COLOURS[n % COLOURS.len()]
}

/// A short line that shows how the `n`-th series is drawn, for legends.
pub(super) fn sample(n: usize, bar: bool, marked: bool) -> String {
    let (colour, dash) = (colour(n), DASHES[n % DASHES.len()]);
    if bar {
        return format!(
            r#"<svg width="14" height="12" aria-hidden="true"><rect width="14" height="12" fill="{colour}"/></svg>"#
        );
    }
    let mark = if marked { mark(n, 17.0, 6.0) } else { String::new() };
    format!(
        r#"<svg width="34" height="12" aria-hidden="true"><line x1="0" y1="6" x2="34" y2="6" stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}"/>{mark}</svg>"#
    )
}

/// The mark of the `n`-th series.
fn mark(n: usize, x: f64, y: f64) -> String {
    let fill = colour(n);
    match n % 4 {
        0 => format!(r#"<circle cx="{x:.1}" cy="{y:.1}" r="3.5" fill="{fill}"/>"#),
        1 => format!(
            r#"<rect x="{:.1}" y="{:.1}" width="6.4" height="6.4" fill="{fill}"/>"#,
            x - 3.2,
            y - 3.2
        ),
        2 => format!(r#"<path d="M{:.1} {:.1}l4 7h-8z" fill="{fill}"/>"#, x, y - 4.2),
        _ => format!(r#"<path d="M{:.1} {:.1}l4 4.4l-4 4.4l-4 -4.4z" fill="{fill}"/>"#, x, y - 4.4),
    }
}

/// An axis with its range and its ticks.
struct Ruler {
    scale: Scale,
    low: f64,
    high: f64,
    ticks: Vec<f64>,
    from: f64,
    to: f64,
}

impl Ruler {
    /// A ruler for these values, drawn between two places; `exact` ticks at the values themselves,
    /// when they are few.
    fn new(axis: &Axis, values: &[f64], from: f64, to: f64, exact: bool) -> Ruler {
        let finite = || values.iter().copied().filter(|value| value.is_finite());
        let most = finite().fold(0.0, f64::max);
        if axis.scale == Scale::Linear {
            let step = nice(most);
            let high = if most > 0.0 { (most / step).ceil() * step } else { 1.0 };
            let ticks = (0..=(high / step).round() as usize).map(|n| n as f64 * step).collect();
            return Ruler { scale: Scale::Linear, low: 0.0, high, ticks, from, to };
        }
        let least = finite().filter(|&value| value > 0.0).fold(f64::INFINITY, f64::min);
        let (mut low, mut high) = if least.is_finite() { (least, most) } else { (1.0, 10.0) };
        let mut ticks: Vec<f64> = finite().filter(|&value| value > 0.0).collect();
        ticks.sort_by(f64::total_cmp);
        ticks.dedup();
        if !exact || ticks.len() > 9 {
            (low, high) = (10f64.powf(low.log10().floor()), 10f64.powf(high.log10().ceil()));
            if high <= low {
                high = low * 10.0;
            }
            let decades = (high / low).log10().round() as i32;
            ticks = (0..=decades).map(|n| low * 10f64.powi(n)).collect();
        } else if high <= low {
            (low, high) = (low / 2.0, high * 2.0);
        }
        Ruler { scale: Scale::Logarithmic, low, high, ticks, from, to }
    }

    fn place(&self, value: f64) -> f64 {
        let share = match self.scale {
            Scale::Linear => (value - self.low) / (self.high - self.low),
            Scale::Logarithmic => {
                (value.max(self.low) / self.low).ln() / (self.high / self.low).ln()
            }
        };
        self.from + share.clamp(0.0, 1.0) * (self.to - self.from)
    }
}

/// A round step between ticks.
fn nice(most: f64) -> f64 {
    if most <= 0.0 {
        return 1.0;
    }
    let raw = most / TICKS_MAX;
    let power = 10f64.powf(raw.log10().floor());
    [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|factor| factor * power)
        .find(|&step| step >= raw * 0.999)
        .unwrap_or(power * 10.0)
}

/// A number as people read it: thousands apart, no more digits than needed.
#[must_use]
pub fn shown(value: f64) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    let digits = (2 - value.abs().log10().floor() as i32).clamp(0, 6) as usize;
    let text = format!("{value:.digits$}");
    let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
    let (sign, whole) = whole.strip_prefix('-').map_or(("", whole), |whole| ("−", whole));
    let mut grouped = String::new();
    for (n, digit) in whole.chars().enumerate() {
        if n > 0 && (whole.len() - n).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    let fraction = fraction.trim_end_matches('0');
    if fraction.is_empty() {
        format!("{sign}{grouped}")
    } else {
        format!("{sign}{grouped}.{fraction}")
    }
}

/// The frame of a drawing, its y axis and the label of its x axis.
fn frame(title: &str, x_label: &str, y: &Axis, ruler: &Ruler) -> String {
    let mut out = format!(
        r#"<svg class="plot" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{}" xmlns="http://www.w3.org/2000/svg" font-size="13">"#,
        escaped(title)
    );
    for &tick in &ruler.ticks {
        let at = ruler.place(tick);
        let _ = write!(
            out,
            r#"<line class="grid" x1="{LEFT}" y1="{at:.1}" x2="{:.1}" y2="{at:.1}"/>"#,
            WIDTH - RIGHT
        );
        let _ = write!(
            out,
            r#"<text x="{:.1}" y="{:.1}" text-anchor="end">{}</text>"#,
            LEFT - 7.0,
            at + 4.5,
            shown(tick)
        );
    }
    let middle = (TOP + HEIGHT - BOTTOM) / 2.0;
    let _ = write!(
        out,
        r#"<text class="unit" transform="translate(17 {middle:.1}) rotate(-90)" text-anchor="middle">{}</text>"#,
        escaped(&y.label)
    );
    let centre = (LEFT + WIDTH - RIGHT) / 2.0;
    if !x_label.is_empty() {
        let _ = write!(
            out,
            r#"<text class="unit" x="{centre:.1}" y="{:.1}" text-anchor="middle">{}</text>"#,
            HEIGHT - 10.0,
            escaped(x_label)
        );
    }
    let _ = write!(
        out,
        r#"<line class="axis" x1="{LEFT}" y1="{0:.1}" x2="{1:.1}" y2="{0:.1}"/>"#,
        HEIGHT - BOTTOM,
        WIDTH - RIGHT
    );
    out
}

/// Lines over an axis.
pub(super) fn lines(plot: &Lines) -> String {
    let values = |of: fn(&(f64, f64)) -> f64| {
        plot.series.iter().flat_map(|series| &series.points).map(of).collect::<Vec<f64>>()
    };
    let x = Ruler::new(&plot.x, &values(|point| point.0), LEFT, WIDTH - RIGHT, !plot.steps);
    let y = Ruler::new(&plot.y, &values(|point| point.1), HEIGHT - BOTTOM, TOP, false);
    let mut out = frame(&plot.title, &plot.x.label, &plot.y, &y);
    for &tick in &x.ticks {
        let at = x.place(tick);
        let _ = write!(
            out,
            r#"<line class="axis" x1="{at:.1}" y1="{:.1}" x2="{at:.1}" y2="{:.1}"/>"#,
            HEIGHT - BOTTOM,
            HEIGHT - BOTTOM + 5.0
        );
        let _ = write!(
            out,
            r#"<text x="{at:.1}" y="{:.1}" text-anchor="middle">{}</text>"#,
            HEIGHT - BOTTOM + 19.0,
            shown(tick)
        );
    }
    for (n, series) in plot.series.iter().enumerate() {
        let mut path = String::new();
        let mut last = y.place(0.0);
        for (k, &(px, py)) in series.points.iter().enumerate() {
            let (px, py) = (x.place(px), y.place(py));
            let _ = match (k, plot.steps) {
                // A distribution comes from nothing.
                (0, true) => write!(path, "M{px:.1} {last:.1}L{px:.1} {py:.1}"),
                (0, false) => write!(path, "M{px:.1} {py:.1}"),
                (_, true) => write!(path, "L{px:.1} {last:.1}L{px:.1} {py:.1}"),
                (_, false) => write!(path, "L{px:.1} {py:.1}"),
            };
            last = py;
        }
        if plot.steps && !series.points.is_empty() {
            let _ = write!(path, "L{:.1} {last:.1}", WIDTH - RIGHT);
        }
        let (colour, dash) = (colour(n), DASHES[n % DASHES.len()]);
        let _ = write!(
            out,
            r#"<path d="{path}" fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}"/>"#
        );
        if !plot.steps {
            series
                .points
                .iter()
                .for_each(|&(px, py)| out.push_str(&mark(n, x.place(px), y.place(py))));
        }
    }
    out.push_str("</svg>");
    out
}

/// Groups of bars.
pub(super) fn bars(plot: &Bars) -> String {
    let heights = plot.series.iter().flat_map(|(_, heights)| heights.iter().flatten().copied());
    let values: Vec<f64> =
        heights.chain(plot.mark.iter().flat_map(|(_, marks)| marks.iter().copied())).collect();
    let y = Ruler::new(&plot.y, &values, HEIGHT - BOTTOM, TOP, false);
    let mut out = frame(&plot.title, "", &plot.y, &y);
    let width = (WIDTH - LEFT - RIGHT) / plot.groups.len().max(1) as f64;
    let bar = width * 0.78 / plot.series.len().max(1) as f64;
    for (g, group) in plot.groups.iter().enumerate() {
        let start = LEFT + width * g as f64;
        for (n, (name, heights)) in plot.series.iter().enumerate() {
            let Some(height) = heights.get(g).copied().flatten() else { continue };
            let (left, top) = (start + width * 0.11 + bar * n as f64, y.place(height));
            let _ = write!(
                out,
                r#"<rect x="{left:.1}" y="{top:.1}" width="{:.1}" height="{:.1}" fill="{}"><title>{}, {}: {}</title></rect>"#,
                (bar - 1.0).max(1.0),
                (HEIGHT - BOTTOM - top).max(0.0),
                colour(n),
                escaped(group),
                escaped(name),
                shown(height)
            );
            // Numbers over the bars, where they have room.
            if bar >= 26.0 {
                let size = if bar >= 36.0 { 12 } else { 10 };
                let at = left + bar / 2.0;
                let _ = write!(
                    out,
                    r#"<text x="{at:.1}" y="{:.1}" text-anchor="middle" font-size="{size}">{}</text>"#,
                    top - 4.0,
                    shown(height)
                );
            }
        }
        if let Some(at) =
            plot.mark.as_ref().and_then(|(_, marks)| marks.get(g)).map(|&mark| y.place(mark))
        {
            let _ = write!(
                out,
                r#"<line class="mark" x1="{:.1}" y1="{at:.1}" x2="{:.1}" y2="{at:.1}"/>"#,
                start + width * 0.06,
                start + width * 0.94
            );
        }
        // Names in two lines when they are long and stand close.
        let room = (width / 7.2).max(4.0) as usize;
        for (k, part) in wrapped(group, room).iter().enumerate() {
            let _ = write!(
                out,
                r#"<text x="{:.1}" y="{:.1}" text-anchor="middle" font-size="12">{}</text>"#,
                start + width / 2.0,
                HEIGHT - BOTTOM + 17.0 + 14.0 * k as f64,
                escaped(part)
            );
        }
    }
    out.push_str("</svg>");
    out
}

/// A name in at most three lines of about `room` letters.
fn wrapped(name: &str, room: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in name.split_inclusive([' ', '-']) {
        let line = lines.len() - 1;
        if !lines[line].is_empty()
            && lines[line].chars().count() + word.trim_end().chars().count() > room
            && lines.len() < 3
        {
            lines.push(String::new());
        }
        let line = lines.len() - 1;
        lines[line].push_str(word);
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_by_people() {
        let all = [0.0, 1.0, 2000.0, 1_234_567.0, 0.5, 12.34, 0.001_234, -3.0].map(shown);
        assert_eq!(all, ["0", "1", "2,000", "1,234,567", "0.5", "12.3", "0.00123", "−3"]);
        assert_eq!([7.0, 100.0, 4556.0, 0.9].map(nice), [2.0, 20.0, 1000.0, 0.2]);
    }

    #[test]
    fn rulers_cover_their_values() {
        let linear = Axis { label: "y".into(), scale: Scale::Linear };
        let ruler = Ruler::new(&linear, &[3.0, 4556.0], 300.0, 0.0, false);
        assert_eq!(
            (ruler.high, ruler.ticks.len(), ruler.place(0.0), ruler.place(5000.0)),
            (5000.0, 6, 300.0, 0.0)
        );
        let log = Axis { label: "x".into(), scale: Scale::Logarithmic };
        let ruler = Ruler::new(&log, &[8.0, 32.0, 128.0], 0.0, 100.0, true);
        assert_eq!(
            (ruler.ticks.clone(), ruler.place(32.0).round()),
            (vec![8.0, 32.0, 128.0], 50.0)
        );
        let ruler = Ruler::new(&log, &[0.0, 0.02, 30.0], 0.0, 100.0, false);
        assert_eq!((ruler.ticks.len(), ruler.place(0.0)), (5, 0.0));
        for values in [&[][..], &[0.0], &[5.0], &[f64::NAN, 1.0]] {
            for axis in [&linear, &log] {
                let ruler = Ruler::new(axis, values, 0.0, 1.0, true);
                assert!(ruler.high > ruler.low && ruler.place(1.0).is_finite(), "{values:?}");
            }
        }
    }

    #[test]
    fn names_are_wrapped_and_escaped() {
        assert_eq!(wrapped("thin, strong", 6), ["thin, ", "strong"]);
        assert_eq!(wrapped("a b c d e", 1).len(), 3);
        assert_eq!(escaped("<a & \"b\">"), "&lt;a &amp; &quot;b&quot;&gt;");
    }
}
