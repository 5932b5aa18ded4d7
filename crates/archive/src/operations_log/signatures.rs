//! Readers find out who signed a frame, and apply what the signer may do.

use onefold_core::{Kind, Result};

use crate::{
    format::{
        Identity,
        frame::{Frame, signed_message},
        record::Record,
    },
    memory::Drawn,
    rules::Rule,
    settings::Settings,
    tables::{MANAGE, Tables, refused},
};

/// Who signed a frame.
pub(super) enum SignedBy {
    /// Keys have no roles: whoever has the key may do everything.
    Anybody,
    /// Whoever manages the archive.
    Manage,
    /// The put key of this number.
    Put(u32),
    /// Nobody who is known, whatever number the frame names: it says nothing of the key of that number.
    Nobody,
}

/// Finds out who signed a frame that follows these tables. The number of the key area counts when manage
/// says it.
pub(super) fn signed_by(
    identity: &Identity,
    tables: &Tables,
    frame: &Frame<'_>,
    settings: &Settings,
) -> SignedBy {
    let Some(sealing) = identity.sealing() else { return SignedBy::Anybody };
    let Some(roles) = sealing.roles() else {
        sealing.saw_keys(frame.keys.into());
        return SignedBy::Anybody;
    };
    let Some((number, signature)) = &frame.signed else { return SignedBy::Nobody };
    let of = (*number, frame.sequence, frame.epoch, frame.keys);
    let message = signed_message(identity, of, &tables.head, &frame.payload);
    if *number == MANAGE {
        if !roles.is_of_manage(&message, signature) {
            return SignedBy::Nobody;
        }
        sealing.saw_keys(frame.keys.into());
        return SignedBy::Manage;
    }
    let key = tables.roles.as_ref().and_then(|roles| roles.key(*number));
    match key.is_some_and(|key| onefold_seal::is_signed(&key.public, &message, signature)) {
        true if !settings.keeps(Rule::RoleCompared) => SignedBy::Manage,
        true => SignedBy::Put(*number),
        false => SignedBy::Nobody,
    }
}

/// Applies what a put key signed, if it may do that and if it fits; else the frame is passed over.
pub(super) fn apply_put(
    tables: &mut Tables,
    number: u32,
    frame: &Frame<'_>,
    drawn: &Drawn,
    settings: &Settings,
) -> Result<()> {
    let sequence = frame.sequence;
    // The limits are the same for all readers, and small: nobody who takes part finds another history, and
    // nobody's memory ends.
    let judged = Record::decode_put(&frame.payload, drawn).and_then(|records| {
        let notes = tables.judge_put(number, &records, settings).map_err(refused)?;
        let mut next = Tables::clone(tables);
        next.apply(sequence, records)?;
        next.note_put(number, notes);
        Ok(next)
    });
    match judged {
        Ok(next) => *tables = next,
        Err(error) if error.kind() == Kind::Memory => return Err(error),
        Err(_) => tables.pass_over(sequence, number),
    }
    Ok(())
}
