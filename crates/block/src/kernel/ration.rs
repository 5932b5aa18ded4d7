//! The free space that is withheld from the clients of several tenants, drawn anew each time.

use std::time::Duration;

use onefold_core::checksum;

/// How long a draw counts at most.
const DRAW_COUNTS: Duration = Duration::from_secs(60);

/// Where writes of clients begin and end to be refused.
pub(crate) struct Ration {
    /// The secret from which draws are made, so that clients can't foresee them.
    secret: [u8; 32],
    draws: u64,
    drawn: Duration,
    /// Writes are refused.
    full: bool,
    /// Blocks that are withheld from clients now.
    withheld: u64,
}

impl Ration {
    /// The first draw, of a `share` of the space.
    pub(crate) fn new(secret: [u8; 32], share: u64, now: Duration) -> Ration {
        let mut ration = Ration { secret, draws: 0, drawn: now, full: false, withheld: 0 };
        ration.refuse(false, share, now);
        ration
    }

    /// The first draw of a domain's own, of a `share` of its quota.
    pub(crate) fn another(&self, domain: u32, share: u64, now: Duration) -> Ration {
        let mut secret = [0; 32];
        for (n, half) in (0..).zip(secret.chunks_exact_mut(16)) {
            let of = [domain.to_le_bytes(), u32::to_le_bytes(n)].concat();
            half.copy_from_slice(&checksum::forgery_proof(&self.secret, &of));
        }
        Ration::new(secret, share, now)
    }

    /// Blocks that are withheld from clients now; drawn anew when the last draw is old.
    pub(crate) fn withheld(&mut self, share: u64, now: Duration) -> u64 {
        if now.saturating_sub(self.drawn) >= DRAW_COUNTS {
            self.withheld = self.draw(share, now);
        }
        self.withheld
    }

    /// Writes are refused from now on, or taken again.
    pub(crate) fn answered(&mut self, full: bool, share: u64, now: Duration) {
        if self.full != full {
            self.refuse(full, share, now);
        }
    }

    fn draw(&mut self, share: u64, now: Duration) -> u64 {
        self.draws += 1;
        self.drawn = now;
        let proof = checksum::forgery_proof(&self.secret, &self.draws.to_le_bytes());
        (u128::from_le_bytes(proof) % u128::from(share.max(1))) as u64
    }

    /// Refuses from now on, until more is free; or takes again, until less is.
    fn refuse(&mut self, full: bool, share: u64, now: Duration) {
        let before = self.withheld;
        let drawn = self.draw(share, now);
        // Otherwise a client could draw again and again without freeing anything.
        self.withheld = if full { drawn.max(before) } else { drawn };
        self.full = full;
    }
}
