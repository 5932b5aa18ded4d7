//! The key area of an encrypted store, whoever wrote it.

use std::sync::Mutex;

use onefold_core::{Result, checksum};
use onefold_seal::{
    AREA_BYTES, Argon, Care, KeyArea, Keys, Random, Secret, SlotKind, SlotSecret, judge,
};
use onefold_testbed::Rng;

use crate::reach;

const ID: [u8; 16] = [7; 16];

/// Chance from a seed.
struct Seeded(Mutex<Rng>);

impl Random for Seeded {
    fn fill(&self, into: &mut [u8]) -> Result<()> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner).fill(into);
        Ok(())
    }
}

fn secret() -> SlotSecret {
    SlotSecret::Key(Secret::take(&mut [3; 32]))
}

/// With its checksum made again, whose seed is the first 8 bytes of the id in it.
fn mended(data: &[u8]) -> Vec<u8> {
    let mut bytes = data.to_vec();
    bytes.resize(AREA_BYTES, 0);
    let (body, sum) = bytes.split_at_mut(AREA_BYTES - 8);
    let mut seed = [0; 8];
    seed.copy_from_slice(&body[16..24]);
    sum.copy_from_slice(&checksum::fast(u64::from_le_bytes(seed), body).to_le_bytes());
    bytes
}

/// A copy of a key area beside a good one: it is read or refused, and who has no key opens nothing by
/// it.
pub fn key_area(data: &[u8]) {
    let good = examples().pop().unwrap_or_default();
    for bytes in [data.to_vec(), mended(data)] {
        match KeyArea::decode(&bytes) {
            Ok(area) => {
                reach::good();
                assert!(
                    area.bytes() == &bytes[..],
                    "an area has other bytes than it was read from"
                );
            }
            Err(error) => reach::refused(&error),
        }
        let mut root = |area: &KeyArea| {
            let found = area.root(&secret(), 1 << 30)?;
            found.map(|(_, root)| root).ok_or_else(|| {
                onefold_core::Error::new(onefold_core::Kind::Denied, "no slot opens")
            })
        };
        let copies = [&bytes[..], &good[..]];
        match judge(copies, &ID, (0, false), &mut root, Care::default()) {
            Ok(judged) => assert!(
                examples().iter().any(|area| area[..] == *judged.area.bytes()),
                "an area counts that nobody with a key wrote"
            ),
            Err(error) => reach::refused(&error),
        }
    }
}

pub(crate) fn examples() -> Vec<Vec<u8>> {
    let random = Seeded(Mutex::new(Rng::new(49)));
    let made = || -> Result<Vec<Vec<u8>>> {
        let mut keys = Keys::create(ID, &random)?;
        let file = (SlotKind::File, "a file");
        keys.add_slot(file, &secret(), Argon::LEAST, (5, 1 << 30), &random)?;
        let first = keys.next_area(&random)?;
        keys.add_domain("tenant", &random)?;
        let second = keys.next_area(&random)?;
        Ok(vec![first.bytes().to_vec(), second.bytes().to_vec()])
    };
    made().unwrap_or_default()
}
