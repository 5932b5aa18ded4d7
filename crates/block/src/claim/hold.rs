//! When a holder must look again, and when it is one no longer.

use std::time::Duration;

use onefold_core::Block;

use super::{Place, Times};
use crate::format::claim::{Claim, SECTOR, State};

/// Why a claim is lost, for good.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Loss {
    /// Somebody else's bytes are there; `None` when they are no claim of this store.
    Taken(Option<Claim>),
    /// Its own bytes reached the medium so late that they may have covered those of somebody who
    /// works.
    Late,
}

/// A claim that is held.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Holder {
    claim: Claim,
    /// When it last found its own bytes: the time before that look began.
    looked: Duration,
    /// Its bytes were not on the medium before this: the look before they were written. Who watches
    /// them began no earlier.
    since: Duration,
    place: Place,
    lost: Option<Loss>,
}

impl Holder {
    /// The holder of a claim that it wrote, after a look at `looked`.
    #[must_use]
    pub fn new(claim: Claim, looked: Duration, place: Place) -> Holder {
        Holder { claim, looked, since: looked, place, lost: None }
    }

    /// When it last found its own bytes.
    #[must_use]
    pub fn looked(&self) -> Duration {
        self.looked
    }

    /// Why the claim is lost.
    #[must_use]
    pub fn lost(&self) -> Option<&Loss> {
        self.lost.as_ref()
    }

    /// True while it may submit and acknowledge without another look. A clock that went back says
    /// nothing, so then it looks.
    #[must_use]
    pub fn sees(&self, times: &Times, now: Duration) -> bool {
        self.lost.is_none() && fresh(times, self.looked, now)
    }

    /// Takes the claim that was found by a read that began at `asked`.
    ///
    /// # Errors
    /// The loss.
    pub fn seen(&mut self, asked: Duration, block: &Block) -> Result<(), Loss> {
        if let Some(loss) = &self.lost {
            return Err(loss.clone());
        }
        if self.claim.encode().0[..SECTOR] != block.0[..SECTOR] {
            return self.lose(Loss::Taken(
                Claim::decode(block).filter(|claim| claim.store == self.claim.store),
            ));
        }
        self.looked = asked;
        Ok(())
    }

    /// The claim to write next, right after a look.
    pub fn renewal(&mut self, token: [u8; 16], state: State) -> Box<Block> {
        self.claim.token = token;
        self.claim.state = state;
        self.claim.encode()
    }

    /// The claim that was written has reached the medium by `now`. However long a disk takes for it,
    /// nobody else reaches a file of this machine whose locks are held.
    ///
    /// # Errors
    /// The loss.
    pub fn wrote(&mut self, times: &Times, now: Duration) -> Result<(), Loss> {
        // Nobody else works yet who took the claim since the look, or who watched the bytes before
        // these. Of later ones these bytes may cover the claim.
        let alone = fresh(times, self.looked, now)
            || now.checked_sub(self.since).is_some_and(|age| age <= times.lasts);
        if !alone && self.place == Place::Shared {
            return self.lose(Loss::Late);
        }
        self.since = self.looked;
        Ok(())
    }

    fn lose(&mut self, loss: Loss) -> Result<(), Loss> {
        self.lost = Some(loss.clone());
        Err(loss)
    }
}

/// True while a look still counts.
pub(super) fn fresh(times: &Times, looked: Duration, now: Duration) -> bool {
    now.checked_sub(looked).is_some_and(|age| age <= times.unseeing)
}
