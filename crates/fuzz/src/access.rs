//! A file of rights: what is taken gives each peer what its lines say, and nobody anything else.

use onefold_console::access::Lines;
use onefold_serve::nbd::{Peer, Right};

use crate::reach;

/// Users that no line of an input may help: each input has its own.
const STRANGERS: std::ops::Range<u32> = 4_000_000_000..4_000_000_100;

/// One file.
pub fn access_file(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Some(lines) = reach::noted(text.parse::<Lines>()) else { return };
    for line in text.lines().map(str::trim).filter(|line| !line.starts_with('#')) {
        let words: Vec<&str> = line.split_whitespace().collect();
        // Each line that is good among others is good alone, and gives no more there.
        let Ok(alone) = line.parse::<Lines>() else { panic!("'{line}' is refused alone") };
        let Some(peer) = words.first().and_then(|peer| known(peer)) else { continue };
        assert!(lines.knows(peer) && alone.knows(peer), "'{line}' names nobody");
        let Some((right, volumes)) = words.get(1).zip(words.get(2)) else { continue };
        let right = if *right == "write" { Right::Write } else { Right::Read };
        // What the stars stand for may be nothing, or themselves.
        for name in [volumes.replace('*', ""), (*volumes).to_owned(), volumes.replace('*', "ab")] {
            assert!(alone.right(peer, &name) == right, "'{line}' gives something else on {name}");
            assert!(lines.right(peer, &name) >= right, "'{line}' gives less among others");
        }
        let other = [volumes, "/other"].concat();
        let is_pattern = volumes.contains(['*', '?']);
        assert!(is_pattern || alone.right(peer, &other) == Right::Nothing, "'{line}' on {other}");
    }
    let Some(stranger) = STRANGERS.into_iter().find(|user| !text.contains(&user.to_string()))
    else {
        return;
    };
    for peer in [Peer::User(stranger), Peer::Unknown] {
        assert!(!lines.knows(peer) && lines.right(peer, "disk") == Right::Nothing);
    }
}

/// A peer that needs no list of users.
fn known(text: &str) -> Option<Peer> {
    match text.split_once(':')? {
        ("uid", number) => number.parse().ok().map(Peer::User),
        ("addr", address) => address.parse().ok().map(Peer::at),
        _ => None,
    }
}

pub(crate) fn examples() -> Vec<Vec<u8>> {
    let digits = "ab".repeat(32);
    [
        "# who may do what\nuid:1000 write vm-*\nuid:1000 read *\n",
        "user:root write a?c\naddr:10.0.0.1 read backup\naddr:2001:db8::1 write x*y*\n",
        "client:vm-host write vm-*\ndns:Backup.Example read *\nclient:prometheus pages\n",
        &format!("sha256:{digits} read disk\nuid:7 read **a**b\n"),
    ]
    .map(|text| text.as_bytes().to_vec())
    .to_vec()
}
