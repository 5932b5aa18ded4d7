//! The recovery key: 256 bits that a person writes down, in bech32m, which notices slips of the pen.

use bech32::{Bech32m, Hrp};
use onefold_core::{Error, Kind, Result};
use zeroize::{Zeroize, Zeroizing};

use crate::Secret;

/// What a recovery key begins with, before `1`.
const BEGINS: &str = "onefold";

/// Letters of a group, when it is written.
const GROUP: usize = 6;

fn begins() -> Result<Hrp> {
    Hrp::parse(BEGINS).map_err(|_| Error::new(Kind::InvalidInput, "a recovery key has no name"))
}

/// The key as it is written down: `onefold1`, and letters and digits in groups.
///
/// # Errors
/// None that is known.
pub fn to_words(key: &Secret) -> Result<Zeroizing<String>> {
    let encoded = bech32::encode::<Bech32m>(begins()?, key.expose());
    let mut encoded = encoded.map_err(|e| Error::new(Kind::InvalidInput, e.to_string()))?;
    let mut words = Zeroizing::new(String::with_capacity(2 * encoded.len()));
    let (name, data) = encoded.split_at(BEGINS.len() + 1);
    words.push_str(name);
    for (number, letter) in data.chars().enumerate() {
        if number > 0 && number % GROUP == 0 {
            words.push('-');
        }
        words.push(letter);
    }
    encoded.zeroize();
    Ok(words)
}

/// The key that was written down. Spaces and hyphens count for nothing, and capital letters are like
/// small ones.
///
/// # Errors
/// `InvalidInput`: it is no recovery key, or a letter of it is wrong.
pub fn from_words(words: &str) -> Result<Secret> {
    let wrong = |why: &str| Error::new(Kind::InvalidInput, format!("the recovery key {why}"));
    let letters = words.chars().filter(|letter| !letter.is_whitespace() && *letter != '-');
    // Room for all of them, so that no part is left behind where the text grew.
    let mut text = Zeroizing::new(String::with_capacity(4 * words.len()));
    letters.for_each(|letter| text.push(letter.to_ascii_lowercase()));
    let checked = bech32::primitives::decode::CheckedHrpstring::new::<Bech32m>(&text);
    let checked = checked.map_err(|_| wrong("has a wrong letter, or one too many or too few"))?;
    if checked.hrp() != begins()? {
        return Err(wrong("is of something else"));
    }
    let mut key = Zeroizing::new([0; 32]);
    let mut bytes = checked.byte_iter();
    let filled = key.iter_mut().all(|byte| bytes.next().map(|next| *byte = next).is_some());
    if !filled || bytes.next().is_some() {
        return Err(wrong("has not 256 bits"));
    }
    Ok(Secret::take(&mut key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rule_23_a_recovery_key_is_read_as_it_is_written() {
        let mut bytes = std::array::from_fn(|n| (n as u8).wrapping_mul(7) + 1);
        let copy = bytes;
        let key = Secret::take(&mut bytes);
        assert_eq!(bytes, [0; 32], "the caller's copy is overwritten");
        let words = to_words(&key).unwrap();
        assert!(words.starts_with("onefold1"), "{}", *words);
        assert!(from_words(&words).unwrap().equals(&copy));
        let shouted = words.to_uppercase().replace('-', " ");
        assert!(from_words(&shouted).unwrap().equals(&copy));
        let letters: Vec<char> = words.chars().collect();
        for at in (0..letters.len()).filter(|&at| letters[at] != '-') {
            let mut slip = letters.clone();
            slip[at] = if slip[at] == 'q' { 'p' } else { 'q' };
            let slip: String = slip.into_iter().collect();
            assert!(from_words(&slip).is_err(), "{slip}");
        }
        for other in ["", "onefold1", "hello", "bc1qw508d6qejxtdg4y5r3zarvary0c5xw7kv8f3t4"] {
            assert!(from_words(other).is_err(), "{other}");
        }
    }
}
