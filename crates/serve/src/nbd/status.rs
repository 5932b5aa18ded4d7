//! BLOCK_STATUS: which parts of a range are holes, and which read as zeroes.

use onefold_core::{Extent, ExtentKind, Volume};

use super::limits::Limits;
use super::reply::{Code, Refusal, Replies};
use super::wire::{BASE_ALLOCATION_ID, Fields, Request, STATE_HOLE, STATE_ZERO, command_flag};

/// The states of `base:allocation`.
fn state(kind: ExtentKind) -> u32 {
    match kind {
        ExtentKind::Data => 0,
        ExtentKind::Zero => STATE_ZERO,
        ExtentKind::Hole => STATE_ZERO | STATE_HOLE,
    }
}

/// The length of the range, which is in the payload where there is one, with the contexts that the
/// client wants.
fn asked_length(request: &Request, payload: &[u8]) -> Result<u64, Refusal> {
    if !request.has(command_flag::PAYLOAD_LEN) {
        return Ok(request.length);
    }
    let mut fields = Fields(payload);
    let length = fields.u64();
    let mut contexts = 0;
    while let Some(context) = fields.u32() {
        if context != BASE_ALLOCATION_ID {
            return Err(Refusal::new(
                Code::Invalid,
                format!("metadata context {context} was not negotiated"),
            ));
        }
        contexts += 1;
    }
    match length {
        Some(length) if contexts == 1 && fields.is_empty() => Ok(length),
        _ => Err(Refusal::new(
            Code::Invalid,
            "the payload is not a length and a list of different metadata contexts",
        )),
    }
}

/// Appends the reply to a status request; `size` is the volume's.
pub(crate) fn answer(
    volume: &dyn Volume,
    request: &Request,
    payload: &[u8],
    size: u64,
    limits: &Limits,
    replies: &mut Replies,
) {
    match extents(volume, request, payload, size, limits) {
        Ok(extents) => {
            let described = extents.iter().map(|extent| (extent.bytes, state(extent.kind)));
            replies.status(request.into(), BASE_ALLOCATION_ID, described);
        }
        Err(refusal) => replies.error(request.into(), &refusal, None),
    }
}

fn extents(
    volume: &dyn Volume,
    request: &Request,
    payload: &[u8],
    size: u64,
    limits: &Limits,
) -> Result<Vec<Extent>, Refusal> {
    let length = asked_length(request, payload)?;
    if length == 0 || request.offset.checked_add(length).is_none_or(|end| end > size) {
        return Err(Refusal::new(
            Code::Invalid,
            format!(
                "{length} bytes at {} are not inside the volume's {size} bytes",
                request.offset
            ),
        ));
    }
    let limit = if request.has(command_flag::REQ_ONE) { 1 } else { limits.extents };
    let extents = cut(volume.extents(request.offset, length, limit)?, length, limit);
    if extents.is_empty() {
        return Err(Refusal::new(Code::Io, "the volume could not tell what the range holds"));
    }
    Ok(extents)
}

/// At most `limit` extents and `length` bytes of them: the client counts on getting no more than it
/// asked for.
fn cut(mut extents: Vec<Extent>, length: u64, limit: usize) -> Vec<Extent> {
    extents.truncate(limit);
    let mut left = length;
    extents.retain_mut(|extent| {
        extent.bytes = extent.bytes.min(left);
        left -= extent.bytes;
        extent.bytes > 0
    });
    extents
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_that_tells_more_than_asked_is_cut_short() {
        let extent = |bytes| Extent { bytes, kind: ExtentKind::Data };
        assert_eq!(cut(vec![extent(10), extent(20), extent(30)], 25, 8), [extent(10), extent(15)]);
        assert_eq!(cut(vec![extent(10), extent(20), extent(30)], 60, 2), [extent(10), extent(20)]);
        assert_eq!(cut(vec![extent(0)], 60, 2), []);
    }
}
