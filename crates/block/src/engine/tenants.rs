//! A store that several tenants share: whether a client's write is refused must not tell what
//! others hold (rule 14 of SECURITY.md).
//!
//! On a full store a duplicate would take no space, and so could be taken where new data is
//! refused; with one guess after the other a client could find out a secret in a page whose rest it
//! knows. So a client's block is admitted as if it were new, whatever it holds. That alone is not
//! enough: a guess that was taken, and then a block that is certainly new, tell by the second
//! answer whether the first one took space. Therefore writes are refused, and taken again, at a
//! free space that is drawn anew each time and each minute: one answer says nothing about one
//! block.

use std::time::Duration;

use onefold_core::{Result, checksum};

use super::{
    Engine, State,
    admission::{Admission, Purpose},
};

/// Share of the store out of which the space is drawn that is withheld.
const WITHHELD_SHARE: u64 = 64;

/// How long a draw counts at most.
const DRAW_COUNTS: Duration = Duration::from_secs(60);

/// Where writes of clients begin and end to be refused.
pub(crate) struct Ration {
    /// Nobody foresees the draws who does not know it.
    secret: [u8; 32],
    draws: u64,
    drawn: Duration,
    /// Writes are refused.
    full: bool,
    /// Blocks that are withheld from clients now.
    withheld: u64,
}

impl Ration {
    fn draw(&mut self, share: u64, now: Duration) -> u64 {
        self.draws += 1;
        self.drawn = now;
        let proof = checksum::forgery_proof(&self.secret, &self.draws.to_le_bytes());
        (u128::from_le_bytes(proof) % u128::from(share.max(1))) as u64
    }

    /// Refuses from now on, until more is free; or takes again, until less is.
    fn turn(&mut self, full: bool, share: u64, now: Duration) {
        let before = self.withheld;
        let drawn = self.draw(share, now);
        // Otherwise a client could draw again and again without freeing anything.
        self.withheld = if full { drawn.max(before) } else { drawn };
        self.full = full;
    }
}

impl Engine {
    /// From now on the volumes are those of several tenants, as long as there is more than one:
    /// what a client writes is admitted as if it were new, and refused at a free space that is
    /// drawn from `secret`. Nothing of it is durable.
    pub fn keep_tenants_apart(&self, secret: [u8; 32]) {
        let mut ration =
            Ration { secret, draws: 0, drawn: self.clock.now(), full: false, withheld: 0 };
        ration.turn(false, self.withheld_share(), self.clock.now());
        self.state.lock().ration = Some(ration);
    }

    /// Whether a full store may take what is stored already.
    pub(crate) fn takes_duplicates(&self, state: &State) -> bool {
        state.ration.is_none() || state.volumes.len() <= 1
    }

    /// Admits `blocks` blocks that a client wrote.
    pub(crate) fn admit_data(&self, state: &mut State, blocks: u64) -> Result<Admission> {
        if self.takes_duplicates(state) {
            return self.admit(state, blocks, Purpose::Data);
        }
        let (share, now) = (self.withheld_share(), self.clock.now());
        let withheld = match &mut state.ration {
            Some(ration) if now.saturating_sub(ration.drawn) >= DRAW_COUNTS => {
                ration.withheld = ration.draw(share, now);
                ration.withheld
            }
            Some(ration) => ration.withheld,
            None => 0,
        };
        let admission = self.admit(state, blocks, Purpose::Shared { withheld })?;
        let turns_to = match admission {
            Admission::Full if blocks <= 1 => Some(true),
            Admission::Granted if blocks > 0 => Some(false),
            _ => None,
        };
        if let (Some(ration), Some(full)) = (&mut state.ration, turns_to)
            && ration.full != full
        {
            ration.turn(full, share, now);
        }
        Ok(admission)
    }

    fn withheld_share(&self) -> u64 {
        self.fixed.geometry.usable_blocks() / WITHHELD_SHARE
    }
}
