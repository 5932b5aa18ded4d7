//! What a stored block holds, for who knows where it is and does not know its domain.

use onefold_core::{Block, Fingerprint, Pba, Result};

use super::{Identity, carrier::Carrier, pack::Pack, page::Form};

/// Where a block is stored, and how.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stored {
    pub(crate) pba: Pba,
    pub(crate) form: Form,
    /// The prefix of its fingerprint as maps keep it.
    pub(crate) prefix: u64,
}

/// What a block that was read holds if it is of this domain; `None` when it can't be opened or expanded. A
/// raw block always opens: the caller compares its fingerprint.
pub(crate) fn opened(
    identity: &Identity,
    domain: u32,
    Stored { pba, form, prefix }: Stored,
    block: &Block,
) -> Option<Block> {
    let mut content = Block::zeroed();
    match form {
        Form::Raw => {
            content.0 = block.0;
            identity.open_raw(domain, prefix, pba, &mut content).ok()?;
        }
        Form::Carried => {
            let carrier =
                Carrier::shape(identity, block, pba).filter(|one| one.header.address == pba)?;
            carrier.expand(domain, prefix, &mut content).ok()?;
        }
        Form::Packed(fragment) => {
            Pack::shape(identity, block, pba)?.expand(fragment, &mut content).ok()?;
        }
    }
    Some(*content)
}

/// The domain in which a block that was read has the fingerprint that is wanted, what it holds, and its
/// fingerprint.
pub(crate) fn found(
    identity: &Identity,
    stored: Stored,
    block: &Block,
    wanted: impl Fn(&Fingerprint) -> bool,
) -> Option<(u32, Block, Fingerprint)> {
    identity.domains().find_map(|domain| {
        let mut content = opened(identity, domain, stored, block)?;
        let fingerprint = identity.fingerprinter_of(domain).ok()?.one(&content);
        if wanted(&fingerprint) {
            return Some((domain, content, fingerprint));
        }
        let older = by_older(identity, domain, stored, &mut content, &wanted).ok()??;
        Some((domain, content, older))
    })
}

/// The fingerprint of what was read of a domain and opened by its newest key, if it was written before the
/// key was changed and `agrees` with the fingerprint of then; `None` when it was not. `None` also for a domain
/// that has one key. A raw block is opened by the older key; one that does not agree is of no use then.
///
/// # Errors
/// `Io`: the library of ciphers refuses.
pub(crate) fn by_older(
    identity: &Identity,
    domain: u32,
    stored: Stored,
    content: &mut Block,
    agrees: impl Fn(&Fingerprint) -> bool,
) -> Result<Option<Fingerprint>> {
    let (Some(older), Some(sealing)) = (identity.older_fingerprinter_of(domain), &identity.sealing)
    else {
        return Ok(None);
    };
    if stored.form == Form::Raw {
        sealing.reopen_raw(domain, stored.prefix, stored.pba, content)?;
    }
    Ok(Some(older.one(content)).filter(|found| agrees(found)))
}
