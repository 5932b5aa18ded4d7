//! Users and groups of this machine by their names.
//!
//! Names are those of `/etc/passwd` and `/etc/group`; who is known to a directory service alone is
//! named by his number.

use onefold_core::{Error, Result};

/// The number of a user: a name, or a number already. `None` when there is no user of this name.
///
/// # Errors
/// When the list of users can't be read.
pub fn user(name: &str) -> Result<Option<u32>> {
    number(name, "/etc/passwd")
}

/// The same of a group.
///
/// # Errors
/// When the list of groups can't be read.
pub fn group(name: &str) -> Result<Option<u32>> {
    number(name, "/etc/group")
}

fn number(name: &str, list: &str) -> Result<Option<u32>> {
    if let Ok(number) = name.parse() {
        return Ok(Some(number));
    }
    match std::fs::read_to_string(list) {
        Ok(text) => Ok(find(&text, name)),
        Err(error) => Err(Error::from_io(list, error)),
    }
}

/// Each line is a name, a password that is elsewhere, and the number.
fn find(text: &str, name: &str) -> Option<u32> {
    let of = |line: &str| {
        let mut fields = line.split(':');
        (fields.next() == Some(name)).then(|| fields.nth(1)?.parse().ok()).flatten()
    };
    text.lines().find_map(of)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_are_found() {
        let text = "root:x:0:0:root:/root:/bin/sh\nbroken\nkvm:x:104:\n::7:\n";
        assert_eq!(
            (find(text, "root"), find(text, "kvm"), find(text, "kv"), find(text, "broken")),
            (Some(0), Some(104), None, None)
        );
        assert_eq!(
            (user("root").unwrap(), group("4294967294").unwrap(), user("no such user").unwrap()),
            (Some(0), Some(4_294_967_294), None)
        );
    }
}
