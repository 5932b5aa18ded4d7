//! Which of the two copies of a key area counts.
//!
//! A change writes the copy that does not count, makes it durable, and then the other one. So a crash
//! leaves one whole copy at least, and the higher one is the newer. But whoever has the medium can put
//! an old copy back, or one of their own making. Therefore:
//!
//! - The higher whole copy counts if its code agrees. Only then, and once it is durable, the other one
//!   is written like it.
//! - If its code does not agree, it was forged: the other copy counts only when the operator says so.
//! - A copy lower than what the store's other metadata bears counts only then, too.
//!
//! | a crash | leaves |
//! |---|---|
//! | before the first copy is durable | the old keys; that copy is damaged or old, and is written again |
//! | between the copies | the new keys; the other copy is old or damaged, and is written like the first |
//! | after both | the new keys |
//! | in an erasure, before its first copy is durable | the keys as they were |
//! | in an erasure, later | a copy that says so, or none: whoever opens the store to write ends the erasure |

use onefold_core::{Error, Kind, Result};

use crate::{Secret, area::KeyArea, keys::Keys};

/// What judging takes care of. Only simulators leave something out.
#[derive(Clone, Copy, Debug)]
pub struct Care {
    /// The code of the copy is compared.
    pub compares_code: bool,
    /// The higher copy counts.
    pub takes_higher: bool,
}

impl Default for Care {
    fn default() -> Care {
        Care { compares_code: true, takes_higher: true }
    }
}

/// The copy that counts.
pub struct Judged {
    /// Its keys.
    pub keys: Keys,
    /// Itself.
    pub area: KeyArea,
    /// The copies that are not like it, and are written again before anything else happens.
    pub differs: [bool; 2],
}

/// Judges the two copies of the key area of the store with this id. `root` gives the root key of a
/// copy, by one of its slots; its `Denied` says that none opens. `at_least` is the number that other
/// metadata bear, as far as the caller knows it, and `accept_older` is the operator's word that an older
/// copy may count.
///
/// # Errors
/// `Corrupt`: no copy is whole, or the one that counts was changed. `Denied`: no slot opens, or only an
/// older copy is left. Those of `root`.
pub fn judge(
    copies: [&[u8]; 2],
    id: &[u8; 16],
    (at_least, accept_older): (u64, bool),
    root: &mut dyn FnMut(&KeyArea) -> Result<Secret>,
    care: Care,
) -> Result<Judged> {
    let [first, second] = copies.map(|bytes| KeyArea::decode(bytes).and_then(|area| of(area, id)));
    let (mut whole, error) = match (first, second) {
        (Ok(first), Ok(second)) => (vec![first, second], None),
        (Ok(area), Err(error)) | (Err(error), Ok(area)) => (vec![area], Some(error)),
        (Err(error), Err(_)) => (Vec::new(), Some(error)),
    };
    whole.sort_by_key(|area| std::cmp::Reverse(area.sequence()));
    // Nobody is asked twice for what opens the same bytes.
    whole.dedup_by(|one, other| one.bytes() == other.bytes());
    if !care.takes_higher {
        whole.reverse();
    }
    let Some(newest) = whole.first() else {
        return Err(error.unwrap_or_else(|| Error::new(Kind::Corrupt, "there is no key area")));
    };
    let same_number = whole.iter().all(|area| area.sequence() == newest.sequence());
    let mut failed = None;
    for (number, area) in whole.iter().enumerate() {
        // Of two with one number, of which one is forged, the other one is not older.
        if number > 0 && !(accept_older || same_number) {
            break;
        }
        let root = match root(area) {
            Ok(root) => root,
            // Slots that do not open it, or ask for too much, prove no erasure. Another error leaves open whether
            // they would.
            Err(error)
                if area.is_erased()
                    && !matches!(error.kind(), Kind::Denied | Kind::Corrupt | Kind::Memory) =>
            {
                return Err(error);
            }
            Err(error) => {
                failed.get_or_insert(error);
                continue;
            }
        };
        match area.open(&root, care.compares_code) {
            Ok(Some(keys)) => {
                is_fresh(area.sequence(), at_least, accept_older)?;
                let differs = copies.map(|bytes| bytes != area.bytes());
                return Ok(Judged { keys, area: area.clone(), differs });
            }
            Ok(None) => {
                failed.get_or_insert(forged(!same_number));
            }
            // Not even the operator's word brings back what is being erased.
            Err(error) if area.is_erased() => return Err(error),
            Err(error) => {
                failed.get_or_insert(error);
            }
        }
    }
    Err(failed.unwrap_or_else(|| forged(!same_number)))
}

/// True when the higher whole copy says that the keys are being erased, and its code agrees: whoever
/// may write overwrites both then. Where no slot opens it, nothing proves that.
#[must_use]
pub fn is_being_erased(
    copies: [&[u8]; 2],
    id: &[u8; 16],
    root: &mut dyn FnMut(&KeyArea) -> Result<Secret>,
) -> bool {
    let whole = copies.map(|bytes| KeyArea::decode(bytes).and_then(|area| of(area, id)));
    let newest = whole.into_iter().flatten().max_by_key(KeyArea::sequence);
    let Some(area) = newest.filter(KeyArea::is_erased) else { return false };
    root(&area).is_ok_and(|root| area.is_of(&root))
}

/// Errors when a key area has a lower number than other metadata of the store bear.
///
/// # Errors
/// `Denied`.
fn is_fresh(found: u64, at_least: u64, accept_older: bool) -> Result<()> {
    if found >= at_least || accept_older {
        return Ok(());
    }
    Err(Error::new(
        Kind::Denied,
        format!(
            "the key area is an older one ({found}, and the store has seen {at_least}): slots that were removed and \
             domains that were erased would be back; --accept-older takes it"
        ),
    ))
}

fn of(area: KeyArea, id: &[u8; 16]) -> Result<KeyArea> {
    if area.id() == id {
        Ok(area)
    } else {
        Err(Error::new(Kind::Corrupt, "the key area is another store's"))
    }
}

fn forged(has_older: bool) -> Error {
    let why = "the key area was changed by somebody without its key";
    match has_older {
        false => Error::new(Kind::Corrupt, format!("{why}; put it back from a copy of the store")),
        true => Error::new(
            Kind::Corrupt,
            format!(
                "{why}; --accept-older takes its older copy, and with it slots that were removed since"
            ),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        area::AREA_BYTES,
        keys::tests::{Seeded, add, keys, secret},
        slot::SlotSecret,
    };

    const ID: [u8; 16] = [1; 16];

    fn by(secret: &SlotSecret) -> impl FnMut(&KeyArea) -> Result<Secret> + '_ {
        |area| {
            let found = area.root(secret, 0)?;
            found.map(|(_, root)| root).ok_or_else(|| Error::new(Kind::Denied, "no slot opens"))
        }
    }

    fn judged(copies: [&[u8]; 2], word: (u64, bool), with: u8) -> Result<Judged> {
        judge(copies, &ID, word, &mut by(&secret(with)), Care::default())
    }

    /// Two areas: in the first one secret 2 opens, in the second, newer one it does not any more.
    fn two() -> [Vec<u8>; 2] {
        let mut keys = keys(1);
        let slot = add(&mut keys, 2);
        let old = keys.next_area(&Seeded::new(4)).unwrap();
        keys.remove_slot(slot).unwrap();
        let new = keys.next_area(&Seeded::new(5)).unwrap();
        [old, new].map(|area| area.bytes().to_vec())
    }

    /// What somebody without a key makes of an old area: its number is the highest, so that the slot that
    /// was removed is back.
    fn forged_from(old: &[u8]) -> Vec<u8> {
        let mut bytes = old.to_vec();
        bytes[32..40].copy_from_slice(&9u64.to_le_bytes());
        let seed = u64::from_le_bytes([1; 8]);
        let sum = onefold_core::checksum::fast(seed, &bytes[..AREA_BYTES - 8]);
        bytes[AREA_BYTES - 8..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    #[test]
    fn rule_22_the_higher_copy_counts_and_the_other_is_written_like_it() {
        let [old, new] = two();
        for copies in [[&old[..], &new[..]], [&new, &old]] {
            let found = judged(copies, (0, false), 1).unwrap();
            assert_eq!(found.area.sequence(), 2);
            assert_eq!(found.differs, copies.map(|bytes| bytes == &old[..]));
        }
        let found = judged([&new, &new], (2, false), 1).unwrap();
        assert_eq!(found.differs, [false; 2]);
    }

    #[test]
    fn rule_22_a_removed_slot_does_not_open_by_the_older_copy() {
        let [old, new] = two();
        assert_eq!(judged([&old, &new], (0, false), 2).err().unwrap().kind(), Kind::Denied);
        assert_eq!(judged([&old, &new], (0, true), 2).unwrap().area.sequence(), 1);
        // Nor when the old copy was put in both places, and the store bears the number of the new one.
        let error = judged([&old, &old], (2, false), 2).err().unwrap();
        assert!(error.kind() == Kind::Denied && error.to_string().contains("--accept-older"));
        assert!(judged([&old, &old], (2, true), 2).is_ok());
    }

    #[test]
    fn rule_22_a_damaged_copy_leaves_the_other_one() {
        let [old, new] = two();
        for damage in [vec![0; AREA_BYTES], new[..4096].to_vec(), {
            let mut torn = new.clone();
            torn[512..1024].copy_from_slice(&old[512..1024]);
            torn[2752] ^= 4;
            torn
        }] {
            let found = judged([&damage, &old], (1, false), 1).unwrap();
            assert_eq!((found.area.sequence(), found.differs), (1, [true, false]));
            assert_eq!(
                judged([&damage, &damage], (0, true), 1).err().unwrap().kind(),
                Kind::Corrupt
            );
        }
    }

    #[test]
    fn rule_22_a_forged_copy_counts_never() {
        let [old, new] = two();
        let forged = forged_from(&old);
        assert_eq!(KeyArea::decode(&forged).unwrap().sequence(), 9);
        for copies in [[&forged[..], &new[..]], [&new, &forged]] {
            for with in [1, 2] {
                let error = judged(copies, (2, false), with).err().unwrap();
                assert_eq!(error.kind(), Kind::Corrupt);
                assert!(error.to_string().contains("--accept-older"), "{error}");
            }
            let found = judged(copies, (2, true), 1).unwrap();
            assert_eq!(found.area.sequence(), 2);
            assert_eq!(found.differs, copies.map(|bytes| bytes == &forged[..]));
        }
        assert!(judged([&forged, &forged], (2, true), 1).is_err());
        // Who does not compare the code lets the removed slot in again.
        let careless = Care { compares_code: false, ..Care::default() };
        let taken = judge([&forged, &new], &ID, (2, false), &mut by(&secret(2)), careless);
        assert_eq!(taken.unwrap().area.sequence(), 9);
    }

    #[test]
    fn rule_22_two_forged_copies_of_one_number_offer_no_older_one() {
        let [_, new] = two();
        let [one, other] = [3000, 3001].map(|at| {
            let mut bytes = new.clone();
            bytes[at] ^= 1;
            let seed = u64::from_le_bytes([1; 8]);
            let sum = onefold_core::checksum::fast(seed, &bytes[..AREA_BYTES - 8]);
            bytes[AREA_BYTES - 8..].copy_from_slice(&sum.to_le_bytes());
            bytes
        });
        let error = judged([&one, &other], (0, false), 1).err().unwrap();
        assert!(!error.to_string().contains("--accept-older"), "{error}");
        assert!(error.to_string().contains("from a copy of the store"), "{error}");
    }

    #[test]
    fn rule_26_what_is_being_erased_comes_back_by_no_word_and_is_known_as_such() {
        let mut keys = keys(1);
        let area = keys.next_area(&Seeded::new(4)).unwrap();
        let erased = keys.erased_area(&Seeded::new(5)).unwrap();
        for copies in [[erased.bytes(), area.bytes()], [area.bytes(), erased.bytes()]] {
            for accept_older in [false, true] {
                let error = judged(copies, (0, accept_older), 1).err().unwrap();
                assert!(error.to_string().contains("destroyed"), "{error}");
            }
            assert!(is_being_erased(copies, &ID, &mut by(&secret(1))));
        }
        assert!(!is_being_erased([area.bytes(); 2], &ID, &mut by(&secret(1))));
        // Nobody without the key can say so.
        let mut forged = erased.bytes().to_vec();
        forged[3000] ^= 1;
        let sum =
            onefold_core::checksum::fast(u64::from_le_bytes([1; 8]), &forged[..AREA_BYTES - 8]);
        forged[AREA_BYTES - 8..].copy_from_slice(&sum.to_le_bytes());
        assert!(!is_being_erased([&forged, area.bytes()], &ID, &mut by(&secret(1))));
    }

    /// Of the slots of another store, with the erasure mark and the highest number.
    #[test]
    fn rule_22_a_forged_erasure_with_slots_of_others_keeps_the_whole_copy_from_nobody() {
        let mut keys = keys(1);
        let area = keys.next_area(&Seeded::new(4)).unwrap();
        let mut others = Keys::create(ID, &Seeded::new(7)).unwrap();
        add(&mut others, 9);
        others.next_area(&Seeded::new(8)).unwrap();
        let forged = others.erased_area(&Seeded::new(9)).unwrap();
        assert!(forged.is_erased() && forged.sequence() > area.sequence());
        let copies = [forged.bytes(), area.bytes()];
        assert!(!is_being_erased(copies, &ID, &mut by(&secret(1))));
        assert_eq!(judged(copies, (0, false), 1).err().unwrap().kind(), Kind::Denied);
        let found = judged(copies, (0, true), 1).unwrap();
        assert_eq!((found.area.sequence(), found.differs), (area.sequence(), [true, false]));
    }

    #[test]
    fn rule_23_who_gives_a_wrong_secret_is_asked_once() {
        let [_, new] = two();
        let mut asked = 0;
        let mut wrong = |_: &KeyArea| {
            asked += 1;
            Err(Error::new(Kind::Denied, "no slot opens"))
        };
        assert!(judge([&new, &new], &ID, (0, false), &mut wrong, Care::default()).is_err());
        assert_eq!(asked, 1);
    }

    #[test]
    fn rule_22_the_area_of_another_store_is_none() {
        let mut other = keys(2);
        let area = other.next_area(&Seeded::new(1)).unwrap();
        assert_eq!(judged([area.bytes(); 2], (0, true), 2).err().unwrap().kind(), Kind::Corrupt);
    }
}
