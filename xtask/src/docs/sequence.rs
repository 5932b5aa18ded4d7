//! Sequence diagrams in the words of Mermaid, drawn as SVG: GitHub draws them from the source, and
//! the book shows these, since mdBook draws none and its readers may have no network.
//!
//! Understood are `participant`, messages (`A->>B: text`, `A-->>B: text`, also to oneself) and
//! `Note over A,B: text`.

use std::fmt::Write;

use anyhow::{Context, Result, bail, ensure};

/// Size of letters, and the width of one on average, in pixels.
const LETTER: f64 = 13.0;
const LETTER_WIDTH: f64 = 6.7;

/// Most letters in a line of a message to oneself.
const OWN_LETTERS: usize = 26;

/// Height of the boxes with names, of a line of text, of a message, of a message to oneself beside
/// its text, and of a note.
const BOX: f64 = 30.0;
const LINE: f64 = 16.0;
const MESSAGE: f64 = 34.0;
const OWN_MESSAGE: f64 = 24.0;
const NOTE: f64 = 40.0;

/// Room around a text.
const ROOM: f64 = 14.0;

/// Someone who sends and gets messages.
struct Participant<'a> {
    id: &'a str,
    name: &'a str,
    /// The middle of its line.
    x: f64,
}

/// A message or a note; participants are numbers.
enum Step<'a> {
    Message { from: usize, to: usize, is_answer: bool, text: &'a str },
    Note { first: usize, last: usize, text: &'a str },
}

/// Draws a diagram.
pub(super) fn draw(source: &str) -> Result<String> {
    let (mut participants, steps) = read(source)?;
    place(&mut participants, &steps);
    svg(&participants, &steps)
}

fn read(source: &str) -> Result<(Vec<Participant<'_>>, Vec<Step<'_>>)> {
    let mut lines = source.lines().map(str::trim).filter(|line| !line.is_empty());
    ensure!(lines.next() == Some("sequenceDiagram"), "only sequence diagrams are drawn");
    let (mut participants, mut steps) = (Vec::new(), Vec::new());
    for line in lines {
        if let Some(named) = line.strip_prefix("participant ") {
            let (id, name) = named.split_once(" as ").unwrap_or((named, named));
            participants.push(Participant { id, name, x: 0.0 });
            continue;
        }
        let number = |id: &str| {
            participants
                .iter()
                .position(|one| one.id == id)
                .with_context(|| format!("who is {id}? {line}"))
        };
        let (head, text) = line.split_once(": ").with_context(|| format!("no text: {line}"))?;
        if let Some(over) = head.strip_prefix("Note over ") {
            let (first, last) = over.split_once(',').unwrap_or((over, over));
            let (first, last) = (number(first.trim())?, number(last.trim())?);
            steps.push(Step::Note { first: first.min(last), last: first.max(last), text });
        } else if let Some((from, to)) = head.split_once("-->>") {
            let (from, to) = (number(from)?, number(to)?);
            steps.push(Step::Message { from, to, is_answer: true, text });
        } else if let Some((from, to)) = head.split_once("->>") {
            let (from, to) = (number(from)?, number(to)?);
            steps.push(Step::Message { from, to, is_answer: false, text });
        } else {
            bail!("this can't be drawn: {line}");
        }
    }
    ensure!(!participants.is_empty() && !steps.is_empty(), "an empty diagram");
    Ok((participants, steps))
}

fn width(text: &str) -> f64 {
    text.chars().count() as f64 * LETTER_WIDTH
}

fn widest(lines: &[String]) -> f64 {
    lines.iter().map(|line| width(line)).fold(0.0, f64::max)
}

/// The text of a message to oneself, in lines.
fn own_lines(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= OWN_LETTERS => {
                *line += " ";
                *line += word;
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// Half of the box with a name.
fn half(participant: &Participant<'_>) -> f64 {
    width(participant.name) / 2.0 + ROOM
}

/// Gives each participant a place in which names and texts have room.
fn place(participants: &mut [Participant<'_>], steps: &[Step<'_>]) {
    for n in 0..participants.len() {
        let mut x = half(&participants[n]);
        if n > 0 {
            let before = &participants[n - 1];
            x += before.x + half(before) + ROOM;
        }
        for step in steps {
            let Step::Message { from, to, text, .. } = step else { continue };
            let (first, last) = (*from.min(to), *from.max(to));
            if first != last && last == n {
                x = x.max(participants[first].x + width(text) + 2.0 * ROOM);
            } else if first == last && first + 1 == n {
                x = x.max(participants[first].x + widest(&own_lines(text)) + 4.0 * ROOM);
            }
        }
        participants[n].x = x;
    }
}

fn svg(participants: &[Participant<'_>], steps: &[Step<'_>]) -> Result<String> {
    let mut drawn = String::new();
    let edge = participants.iter().map(|one| one.x + half(one)).fold(0.0, f64::max);
    let (mut left, mut right) = (0.0_f64, edge);
    let mut y = BOX + ROOM;
    for step in steps {
        match step {
            Step::Message { from, to, is_answer, text } => {
                let (a, b) = (participants[*from].x, participants[*to].x);
                let dashes = if *is_answer { r#" stroke-dasharray="5 4""# } else { "" };
                let path = if from == to {
                    let (lines, top) = (own_lines(text), y + OWN_MESSAGE - 4.0);
                    for (n, line) in lines.iter().enumerate() {
                        write(&mut drawn, a + 32.0, top + 13.0 + n as f64 * LINE, "start", line)?;
                    }
                    right = right.max(a + 32.0 + widest(&lines));
                    y = top + 4.0 + lines.len() as f64 * LINE;
                    format!("M{a} {top}H{}V{y}H{}", a + 26.0, a + 2.0)
                } else {
                    y += MESSAGE;
                    write(&mut drawn, (a + b) / 2.0, y - 6.0, "middle", text)?;
                    format!("M{a} {y}H{}", if a < b { b - 2.0 } else { b + 2.0 })
                };
                writeln!(
                    drawn,
                    r#"<path d="{path}" fill="none" stroke="currentColor"{dashes} marker-end="url(#arrow)"/>"#
                )?;
            }
            Step::Note { first, last, text } => {
                y += NOTE;
                let (a, b) = (participants[*first].x, participants[*last].x);
                let reach = ((b - a) / 2.0).max(width(text) / 2.0) + ROOM;
                // Within the picture, where it is wider than the lines that it is about.
                let middle = ((a + b) / 2.0).min(edge - reach).max(reach);
                writeln!(
                    drawn,
                    r#"<rect x="{}" y="{}" width="{}" height="26" rx="4" fill="currentColor" fill-opacity="0.12"/>"#,
                    middle - reach,
                    y - 20.0,
                    2.0 * reach
                )?;
                write(&mut drawn, middle, y - 2.0, "middle", text)?;
                (left, right) = (left.min(middle - reach), right.max(middle + reach));
            }
        }
    }
    let bottom = y + ROOM;
    let mut lines = String::new();
    for participant in participants {
        let (x, half) = (participant.x, half(participant));
        writeln!(
            lines,
            r#"<path d="M{x} {BOX}V{bottom}" stroke="currentColor" stroke-opacity="0.35"/>"#
        )?;
        writeln!(
            lines,
            r#"<rect x="{}" y="1" width="{}" height="{}" rx="4" fill="currentColor" fill-opacity="0.06" stroke="currentColor"/>"#,
            x - half,
            2.0 * half,
            BOX - 1.0
        )?;
        write(&mut lines, x, BOX / 2.0 + 5.0, "middle", participant.name)?;
    }
    let (left, wide) = (left - 2.0, right - left + 4.0);
    let names: Vec<String> = participants.iter().map(|one| escaped(one.name)).collect();
    Ok(format!(
        r#"<div class="diagram">
<svg viewBox="{left} 0 {wide} {bottom}" width="{wide}" height="{bottom}" font-size="{LETTER}" role="img" aria-label="Messages between {}">
<defs><marker id="arrow" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto"><path d="M0 0L8 4L0 8z" fill="currentColor"/></marker></defs>
{lines}{drawn}</svg>
</div>
"#,
        names.join(", ")
    ))
}

/// Writes a text where it begins or has its middle.
fn write(drawn: &mut String, x: f64, y: f64, anchor: &str, text: &str) -> Result<()> {
    let text = escaped(text);
    writeln!(
        drawn,
        r#"<text x="{x}" y="{y}" text-anchor="{anchor}" fill="currentColor">{text}</text>"#
    )?;
    Ok(())
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_and_notes_are_drawn_with_room_for_their_texts() {
        let source = "sequenceDiagram\n participant A as Client\n participant B as Server\n A->>B: \
                      a rather long message <1>\n B->>B: thinks\n B-->>A: done\n Note over A,B: \
                      later\n";
        let (mut participants, steps) = read(source).unwrap();
        place(&mut participants, &steps);
        assert!(participants[1].x - participants[0].x > width("a rather long message <1>"));
        let drawn = draw(source).unwrap();
        assert_eq!(drawn.matches("marker-end").count(), 3);
        assert_eq!(drawn.matches("stroke-dasharray").count(), 1);
        assert!(drawn.contains("message &lt;1&gt;") && !drawn.contains("\n\n"));
    }

    #[test]
    fn messages_to_oneself_are_drawn_in_short_lines() {
        let lines = own_lines("this thread commits, or waits for the one that does");
        assert_eq!(lines, ["this thread commits, or", "waits for the one that", "does"]);
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        for source in [
            "graph TD\nA-->B\n",
            "sequenceDiagram\nparticipant A\nA->>B: hello\n",
            "sequenceDiagram\nparticipant A\nloop every second\n",
            "sequenceDiagram\n",
        ] {
            assert!(draw(source).is_err(), "{source}");
        }
    }
}
