//! What a volume does before it goes: it hands the objects down that others inherit from it.
//!
//! | step | after a crash |
//! |---|---|
//! | its header says that it goes | it gets no child any more |
//! | each child gets the objects that it lacks, see [`copy_up`](super::copy_up) | the rest is copied again |
//! | the parent of the volume knows the child | it may know of one that reads another layer: that is nothing |
//! | the child names that parent, compared with the volume | the child reads the volume, or its parent |
//! | the volume names no parent | |
//!
//! A parent that goes itself goes first, so that nothing is handed to who hands it on already.

use onefold_core::object::{Change, Guard, Refusal, Write};

use super::{
    below::{Below, CHILD, ERASING, PARENT, Parent, children, link},
    copy_up::CopyUp,
};
use crate::{
    format::{ObjectId, key},
    kernel::Kernel,
    names::Names,
    rules::Rule,
    session::Session,
    volume::header::{self, Bits},
};

/// How far a volume is with what others inherit from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Handed {
    /// Nobody inherits from it. True when somebody did: who reads its objects with an old chain of
    /// layers must see that they go.
    Down(bool),
    /// A layer below goes first.
    Waits,
}

/// Hands the objects of a volume down that goes.
///
/// # Errors
/// The store's.
pub(crate) fn hand_down(session: &Session, id: u64) -> Result<Handed, Refusal> {
    let kernel = session.kernel();
    let parent = match Parent::read(kernel, id) {
        Err(Refusal::Missing) => return Ok(Handed::Down(false)),
        other => other?,
    };
    if let Some(parent) = parent {
        match kernel.read_value(&header::name(parent.id), ERASING) {
            Ok(erasing) if erasing.is_empty() => {}
            Ok(_) => return Ok(Handed::Waits),
            // It went before it knew this volume, which then never got a name, nor a child.
            Err(Refusal::Missing) => {}
            Err(refusal) => return Err(refusal),
        }
    }
    set(kernel, id, (ERASING, vec![1]))?;
    let children = children(kernel, id)?;
    for child in &children {
        if !kernel.keeps(Rule::LayerHandedDown) {
            continue;
        }
        if hand_to(session, id, parent, *child)? == Handed::Waits {
            return Ok(Handed::Waits);
        }
    }
    if let Some(parent) = parent {
        leave(kernel, id, parent)?;
    }
    Ok(Handed::Down(!children.is_empty()))
}

/// Gives a child what it inherits, and the volume's parent as its own.
fn hand_to(
    session: &Session,
    id: u64,
    parent: Option<Parent>,
    child: u64,
) -> Result<Handed, Refusal> {
    let kernel = session.kernel();
    loop {
        let inherits = match Parent::read(kernel, child) {
            Err(Refusal::Missing) => return Ok(Handed::Down(true)),
            other => other?,
        };
        // It never came to read it, does no more, or goes.
        let Some(inherits) = inherits.filter(|inherits| inherits.id == id) else {
            return Ok(Handed::Down(true));
        };
        let objects = Bits::read(kernel, id)?;
        let mut bits = Bits::read(kernel, child)?;
        let below = Below::read(kernel, child)?;
        for (n, index) in objects.all().take_while(|index| *index < inherits.objects).enumerate() {
            let object = ObjectId { volume: child, index };
            CopyUp::of(session, object).carry_out(&below, &mut bits)?;
            // Each may copy all the bytes of an object.
            if n % 8 == 0 {
                Names::of(kernel).keep_filling(id)?;
            }
        }
        let next =
            parent.map(|parent| Parent { objects: parent.objects.min(inherits.objects), ..parent });
        if let Some(next) = next {
            match link(kernel, next.id, child) {
                Ok(()) => {}
                Err(Refusal::Mismatch) => return Ok(Handed::Waits),
                Err(refusal) => return Err(refusal),
            }
        }
        let change = match next {
            Some(next) => Change::SetOmap(vec![(PARENT.to_vec(), next.encode())]),
            None => Change::DropOmap(vec![PARENT.to_vec()]),
        };
        let op = Write {
            object: header::name(child),
            guards: vec![Guard::Exists, Guard::Omap(PARENT.to_vec(), inherits.encode())],
            changes: vec![change],
        };
        match kernel.until_answered(&op) {
            Ok(_) => return Ok(Handed::Down(true)),
            // Ours, whose reply was lost; or the child was cut shorter, or goes.
            Err(Refusal::Mismatch | Refusal::Missing) => {}
            Err(refusal) => return Err(refusal),
        }
    }
}

/// The volume reads its parent no more.
fn leave(kernel: &Kernel, id: u64, parent: Parent) -> Result<(), Refusal> {
    for (volume, key) in [(id, PARENT.to_vec()), (parent.id, key::numbered(CHILD, id))] {
        let op = Write {
            object: header::name(volume),
            guards: vec![Guard::Exists],
            changes: vec![Change::DropOmap(vec![key])],
        };
        match kernel.until_answered(&op) {
            Ok(_) | Err(Refusal::Missing) => {}
            Err(refusal) => return Err(refusal),
        }
    }
    Ok(())
}

fn set(kernel: &Kernel, id: u64, (key, value): (&[u8], Vec<u8>)) -> Result<(), Refusal> {
    let op = Write {
        object: header::name(id),
        guards: vec![Guard::Exists],
        changes: vec![Change::SetOmap(vec![(key.to_vec(), value)])],
    };
    match kernel.until_answered(&op) {
        Ok(_) | Err(Refusal::Missing) => Ok(()),
        Err(refusal) => Err(refusal),
    }
}
