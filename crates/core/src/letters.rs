//! Letters that a terminal obeys.

/// True for what a terminal obeys, and for what turns the order of the letters behind it.
#[must_use]
pub fn is_order(c: char) -> bool {
    let turns = matches!(
        c,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    );
    c.is_control() || turns
}

/// JSON in which these letters are escaped. JSON itself demands it for those below the space only. Line ends
/// stay: in JSON they stand between values.
#[must_use]
pub fn said_in_json(text: &str) -> String {
    let mut said = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            c if is_order(c) && c != '\n' => said.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => said.push(c),
        }
    }
    said
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_obeys_is_escaped_and_line_ends_stay() {
        assert_eq!(said_in_json("a\u{9b}2J\u{202e}\né"), "a\\u009b2J\\u202e\né");
    }
}
