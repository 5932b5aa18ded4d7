//! The room that clients leave alone while an act that is asked for waits for it.

use crate::{
    coverage::Mark,
    kernel::{Kernel, Room, State},
    rules::Rule,
};

/// True when an act waits for entries of the table of discards.
pub(crate) fn ranges_kept(kernel: &Kernel, state: &mut State) -> bool {
    let waits = kept(kernel, state).contains(&Room::Ranges);
    kernel.coverage.add(Mark::WaitsForAct, usize::from(waits));
    waits
}

/// Blocks that acts wait for, beyond what is promised. Where no checkpoint can make any, nobody waits,
/// and the acts are told so.
pub(crate) fn blocks_kept(kernel: &Kernel, state: &mut State) -> u64 {
    let blocks = kept(kernel, state).into_iter().map(|room| match room {
        Room::Blocks(blocks) => blocks,
        Room::Ranges => 0,
    });
    let most = blocks.max().unwrap_or(0);
    if most > 0 && !state.can_reclaim() {
        state.act_turn.nothing_to_do(kernel.progress(), false);
        return 0;
    }
    most
}

/// What clients leave alone now.
fn kept(kernel: &Kernel, state: &mut State) -> Vec<Room> {
    #[cfg(feature = "planted-bugs")]
    if !kernel.keeps(Rule::TurnsEnd) {
        return state.act_turn.all().collect();
    }
    if !kernel.keeps(Rule::ActsHaveTurns) {
        return Vec::new();
    }
    state.act_turn.kept(kernel.progress()).collect()
}
