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

use onefold_core::{Result, VolumeId};

use super::admission::{Admission, Purpose};
use crate::{
    engine::{admission::admit, domain_room::is_reserved},
    kernel::{Kernel, Ration, State},
    scheme::verbs::Scheme,
};

/// Share of the store out of which the space is drawn that is withheld.
pub(super) const WITHHELD_SHARE: u64 = 64;

/// From now on the volumes are those of several tenants, as long as there is more than one:
/// what a client writes is admitted as if it were new, and refused at a free space that is
/// drawn from `secret`. Nothing of it is durable.
pub(crate) fn keep_tenants_apart(kernel: &Kernel, secret: [u8; 32]) {
    let ration = Ration::new(secret, withheld_share(kernel), kernel.clock.now());
    kernel.state.lock().ration = Some(ration);
}

/// Whether a full store may take what is stored already.
pub(crate) fn takes_duplicates(state: &State) -> bool {
    state.ration.is_none() || state.volumes.count() <= 1
}

/// Admits `blocks` blocks that a client wrote to a volume. With none of them, as of zeroes, it is as for one: a
/// client can ask whether zeroes were kept, and must not learn how much is free by answers that end
/// no draw.
pub(crate) fn admit_data(
    kernel: &Kernel,
    scheme: &dyn Scheme,
    state: &mut State,
    volume: VolumeId,
    blocks: u64,
) -> Result<Admission> {
    if !state.domains.are_unlimited() {
        let domain = state.volumes.get(volume)?.domain;
        if is_reserved(state, domain, blocks) {
            return admit(kernel, scheme, state, blocks, Purpose::Reserved { domain });
        }
    }
    if takes_duplicates(state) {
        return admit(kernel, scheme, state, blocks, Purpose::Data);
    }
    let blocks = blocks.max(1);
    let (share, now) = (withheld_share(kernel), kernel.clock.now());
    let withheld = state.ration.as_mut().map_or(0, |ration| ration.withheld(share, now));
    let admission = admit(kernel, scheme, state, blocks, Purpose::Shared { withheld })?;
    let full = match admission {
        Admission::Full if blocks <= 1 => Some(true),
        Admission::Granted => Some(false),
        _ => None,
    };
    if let (Some(ration), Some(full)) = (&mut state.ration, full) {
        ration.answered(full, share, now);
    }
    Ok(admission)
}

fn withheld_share(kernel: &Kernel) -> u64 {
    kernel.geometry().usable_blocks() / WITHHELD_SHARE
}
