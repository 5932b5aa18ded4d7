//! Which object has which number. Rows of many objects that somebody gave one number would share its
//! keys, and who looks at all objects would read these keys once for each of them.
//!
//! What was read lately is remembered, in a table of fixed size that its owner can't foresee. So a
//! store can let its keys be read again only once in as many objects as the table has places.

use onefold_core::{Error, Kind, Result, checksum, object::Pool};
use parking_lot::Mutex;

/// Places, with 24 bytes each.
const PLACES: usize = 1 << 16;

/// The numbers of objects that were read lately.
pub(super) struct Numbers {
    seed: u64,
    /// In each place a number, and what the hash of its object's pool and name is.
    places: Vec<Mutex<(u64, u64)>>,
}

impl Numbers {
    /// Of nothing yet; `seed` is random.
    pub(super) fn new(seed: u64) -> Numbers {
        Numbers { seed, places: (0..PLACES).map(|_| Mutex::default()).collect() }
    }

    /// Remembers that an object has a number.
    ///
    /// # Errors
    /// `Corrupt` when another one was seen to have it.
    pub(super) fn belongs(&self, number: u64, pool: Pool, name: &str) -> Result<()> {
        let place = checksum::fast(self.seed, &number.to_le_bytes()) as usize % PLACES;
        let of = checksum::fast(self.seed ^ u64::from(pool == Pool::Chunks), name.as_bytes());
        let mut known = self.places[place].lock();
        // Zeroes stand for an empty place.
        if *known != (0, 0) && known.0 == number && known.1 != of {
            let what = "the tables of the store are damaged: two objects have one number";
            return Err(Error::new(Kind::Corrupt, what));
        }
        *known = (number, of);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rule_09_two_objects_with_one_number_are_damage() {
        let numbers = Numbers::new(7);
        for round in 0..2 {
            for number in 0..1000 {
                let name = format!("o{number}");
                assert!(numbers.belongs(number, Pool::Metadata, &name).is_ok(), "{round}");
            }
        }
        assert!(numbers.belongs(5, Pool::Metadata, "o6").is_err());
        assert!(numbers.belongs(5, Pool::Chunks, "o5").is_err());
    }
}
