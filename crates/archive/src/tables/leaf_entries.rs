//! Entries of leaves: streams as snapshots have them, and containers in 31 bytes, with more for
//! what few have.

use onefold_core::Result;

use super::container::Container;
use crate::format::{
    ContainerId,
    bytes::{Reader, Writer, corrupt},
    container::ContainerKind,
    domain::{FIRST_DOMAIN, other_domain},
    record::{Place, Stored, Stream, id},
};

/// Memory that a stream takes without its name and recipes.
pub(super) const STREAM_MEMORY: usize = 384;

/// Bytes of a stream at least.
pub(super) const STREAM_BYTES: usize = 45;

/// Memory that a container takes which was merged into another one.
pub(super) const MERGED_MEMORY: usize = 128;

/// Bytes of a container that lies where it was written.
pub(super) const COMPACT_BYTES: usize = 31;

/// It has chunks of recipes.
const RECIPES: u8 = 1;

/// A list of containers that were merged into it lies behind it.
const MERGED: u8 = 2;

/// Its fields are as in the log, since one is larger than fits here.
const WIDE: u8 = 4;

/// The number of its domain lies behind its fields, since it is not the first one; those as in the log have
/// it themselves.
const DOMAIN: u8 = 8;

/// Bytes of a container begin at multiples of this.
const UNIT: u64 = 4096;

/// With `LATE` behind it, the versions with which it came and was changed.
pub(super) fn encode_container<const LATE: bool>(
    w: &mut Writer,
    id: &ContainerId,
    container: &Container,
) {
    let Container { stored, merged, logged, born, changed } = container;
    let Stored { kind, domain, chunks, raw_bytes, place, .. } = stored;
    let fits = place.at % UNIT == 0
        && [
            (id.0, 40),
            (u64::from(*chunks), 16),
            (u64::from(*raw_bytes), 24),
            (place.at / UNIT, 40),
            (u64::from(place.bytes), 24),
            (u64::from(place.meta_bytes), 24),
            (*logged, 40),
        ]
        .iter()
        .all(|&(value, bits)| value >> bits == 0);
    let flag = |is: bool, flag: u8| if is { flag } else { 0 };
    w.u8(flag(*kind == ContainerKind::Recipes, RECIPES)
        | flag(!merged.is_empty(), MERGED)
        | flag(fits && *domain != FIRST_DOMAIN, DOMAIN)
        | flag(!fits, WIDE));
    if fits {
        w.uint(id.0, 5)
            .uint(u64::from(*chunks), 2)
            .uint(u64::from(*raw_bytes), 3)
            .u32(place.segment)
            .uint(place.at / UNIT, 5)
            .uint(u64::from(place.bytes), 3)
            .uint(u64::from(place.meta_bytes), 3)
            .uint(*logged, 5);
        if *domain != FIRST_DOMAIN {
            w.u16(*domain as u16);
        }
    } else {
        stored.encode(w);
        w.u64(*logged);
    }
    if !merged.is_empty() {
        w.u32(merged.len() as u32);
        merged.iter().for_each(|id| {
            w.u64(id.0);
        });
    }
    if LATE {
        w.u64(*born).u64(*changed);
    }
}

pub(super) fn decode_container<const LATE: bool>(
    r: &mut Reader<'_>,
) -> Result<(ContainerId, Container)> {
    let flags = r.u8()?;
    if flags & !(RECIPES | MERGED | WIDE | DOMAIN) != 0 || flags & (WIDE | DOMAIN) == WIDE | DOMAIN
    {
        return Err(corrupt("a container has marks that this version does not know"));
    }
    let (stored, logged) = if flags & WIDE != 0 {
        (Stored::decode(r)?, r.u64()?)
    } else {
        let kind = if flags & RECIPES != 0 { ContainerKind::Recipes } else { ContainerKind::Data };
        let id = ContainerId(r.uint(5)?);
        let (chunks, raw_bytes) = (r.uint(2)? as u32, r.uint(3)? as u32);
        let (segment, at) = (r.u32()?, r.uint(5)? * UNIT);
        let (bytes, meta_bytes) = (r.uint(3)? as u32, r.uint(3)? as u32);
        let place = Place { segment, at, bytes, meta_bytes }.checked()?;
        let logged = r.uint(5)?;
        let domain =
            if flags & DOMAIN == 0 { FIRST_DOMAIN } else { other_domain(r.u16()?.into())? };
        (Stored { id, kind, domain, chunks, raw_bytes, place }.checked()?, logged)
    };
    let mut merged = Vec::new();
    if flags & MERGED != 0 {
        let count = r.count(8, MERGED_MEMORY)?;
        merged = (0..count).map(|_| id(r)).collect::<Result<_>>()?;
    }
    let (born, changed) = if LATE { (r.u64()?, r.u64()?) } else { (0, 0) };
    Ok((stored.id, Container { stored, merged, logged, born, changed }))
}

/// Writes a stream behind its name.
#[allow(clippy::ptr_arg, reason = "the key of the catalogue")]
pub(super) fn encode_stream(w: &mut Writer, name: &String, stream: &Stream) {
    w.bytes(name.as_bytes());
    stream.encode(w);
}

/// Reads a stream behind its name.
pub(super) fn decode_stream(r: &mut Reader<'_>) -> Result<(String, Stream)> {
    Ok((r.text()?, Stream::decode(r)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_is_read_as_it_was_written() {
        let place = Place { segment: 70_000, at: 4096 * 9, bytes: 3 << 20, meta_bytes: 16_504 };
        let stored = Stored {
            id: ContainerId((1 << 40) - 2),
            kind: ContainerKind::Recipes,
            domain: 0,
            chunks: 512,
            raw_bytes: 4 << 20,
            place,
        };
        let plain = Container { stored, merged: Vec::new(), logged: 1 << 39, born: 0, changed: 0 };
        let with = |change: &dyn Fn(&mut Container)| {
            let mut container = plain.clone();
            change(&mut container);
            container
        };
        let all = [
            plain.clone(),
            with(&|one| one.stored.kind = ContainerKind::Data),
            with(&|one| one.merged = vec![ContainerId(7), ContainerId(5)]),
            with(&|one| one.logged = 1 << 40),
            with(&|one| one.stored.place.at = 4097),
            with(&|one| (one.stored.place.at, one.merged) = (1 << 48, vec![ContainerId(7)])),
            with(&|one| one.stored.place.bytes = 1 << 24),
            with(&|one| one.stored.domain = 65_535),
            with(&|one| (one.stored.domain, one.merged) = (1, vec![ContainerId(7)])),
            with(&|one| (one.stored.domain, one.logged) = (258, 1 << 40)),
        ];
        for container in &all {
            let mut w = Writer::default();
            encode_container::<false>(&mut w, &container.stored.id, container);
            let wide = container.logged >> 40 > 0
                || container.stored.place.at % UNIT > 0
                || container.stored.place.bytes >> 24 > 0;
            let merged =
                if container.merged.is_empty() { 0 } else { 4 + 8 * container.merged.len() };
            let domain = if wide || container.stored.domain == 0 { 0 } else { 2 };
            assert_eq!(w.0.len(), if wide { 48 } else { COMPACT_BYTES } + domain + merged);
            let r = &mut Reader(&w.0, None);
            assert_eq!(decode_container::<false>(r).unwrap().1, *container);
            r.end().unwrap();
            for end in 0..w.0.len() {
                assert!(decode_container::<false>(&mut Reader(&w.0[..end], None)).is_err());
            }
            let late = Container { born: 3, changed: 4, ..container.clone() };
            let mut w = Writer::default();
            encode_container::<true>(&mut w, &late.stored.id, &late);
            assert_eq!(decode_container::<true>(&mut Reader(&w.0, None)).unwrap().1, late);
        }
        let mut w = Writer::default();
        encode_container::<false>(&mut w, &plain.stored.id, &plain);
        w.0[0] = 16;
        assert!(decode_container::<false>(&mut Reader(&w.0, None)).is_err());
    }
}
