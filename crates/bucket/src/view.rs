//! The state as of the end of the log.

use onefold_core::{Error, Kind, Result};

use crate::{
    format::{Frame, TABLE_MAX, damaged, frame_name},
    kept,
    log::Log,
    rules::Rule,
    settings::Known,
    state::{State, Table},
};

/// A table has at most this part of the memory that the state may take.
const TABLE_SHARE: u64 = 4;

/// The state as of the last frame; `None` when there is no frame.
///
/// # Errors
/// `Corrupt` when the log can't be read, or lacks what this host saw; those of the store.
pub(crate) fn newest(log: &Log) -> Result<Option<State>> {
    let known = log.settings.known.filter(|_| log.settings.keeps(Rule::GoneBackRefused));
    let from = known.map_or(0, |known| known.frame);
    let mut end = log.end(from)?;
    loop {
        if end == 0 {
            return Ok(None);
        }
        match as_of(log, end, known) {
            // Its table may be of long ago, when this process was asleep: then there is a later one.
            Err(error) if error.kind() == Kind::Corrupt => {
                let later = log.end(end)?;
                if later == end {
                    return Err(error);
                }
                end = later;
            }
            state => return state.map(Some),
        }
    }
}

/// The state as of the last frame.
fn as_of(log: &Log, end: u64, known: Option<Known>) -> Result<State> {
    let from = known.map_or(0, |known| known.frame);
    let last = match log.frame(end) {
        Err(error) if error.kind() == Kind::NotFound && known.is_some() => {
            return Err(gone_back(from));
        }
        frame => frame?,
    };
    let behind = end.saturating_sub(last.table_frame);
    if behind > log.settings.follow_max {
        let why = format!(
            "the log has {behind} frames since its last table, and at most {} are read: it is damaged, or \
             somebody else's",
            log.settings.follow_max
        );
        return Err(damaged(&why));
    }
    let mut state = from_table(log, last.table_frame, &last)?;
    follow(log, &mut state, end, known)?;
    if let Some(known) = known {
        compare(log, known, &state)?;
    }
    Ok(state)
}

/// The state before the frame that names the newest table.
fn from_table(log: &Log, table_frame: u64, last: &Frame) -> Result<State> {
    if table_frame == 0 {
        return Ok(State::empty());
    }
    if table_frame > last.number {
        return Err(damaged("the log names a table of later").context(frame_name(last.number)));
    }
    let frame = if table_frame == last.number { last.clone() } else { log.frame(table_frame)? };
    let named = frame.records.iter().find_map(|record| match record {
        crate::format::Record::Table { number, bytes, sum } => Some(Table {
            id: crate::format::Id {
                sort: crate::format::Sort::Table,
                writer: frame.writer,
                number: *number,
            },
            bytes: *bytes,
            sum: *sum,
        }),
        _ => None,
    });
    let table =
        named.ok_or_else(|| damaged("it names no table").context(frame_name(table_frame)))?;
    let name = table.id.to_string();
    let mut last = None;
    let most = TABLE_MAX.min(log.settings.memory / TABLE_SHARE);
    if table.bytes > most {
        let why = format!(
            "{name} has {} MiB, and a process that can have so little memory reads one of {} MiB at most: open the \
             archive where there is more",
            table.bytes >> 20,
            most >> 20
        );
        return Err(Error::new(Kind::Memory, why));
    }
    let part = kept::Part { of: table.sum, from: 0, bytes: table.bytes };
    let mut kept = log.settings.kept(&part);
    for _ in 0..3 {
        let was_kept = kept.is_some();
        let bytes = match kept.take() {
            Some(bytes) => bytes,
            None => log.whole(&name, most).map_err(|error| gone(&name, error))?,
        };
        let hashed = log.settings.keeps(Rule::BodiesHashed);
        if hashed && *blake3::hash(&bytes).as_bytes() != table.sum {
            last = Some(damaged("its hash is another one"));
            continue;
        }
        match State::decode(&bytes) {
            Ok(state) if state.at == table_frame - 1 => {
                if !was_kept {
                    part.store(log.settings.keep.as_ref(), &bytes);
                }
                return Ok(state);
            }
            Ok(_) => last = Some(damaged("it is of another frame")),
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| damaged("it can't be read")).context(name))
}

/// An object that the log needs can't be had.
pub(crate) fn gone(name: &str, error: Error) -> Error {
    match error.kind() {
        Kind::NotFound => Error::new(Kind::Corrupt, format!("{name} is lost")),
        _ => error,
    }
}

/// Applies the frames up to this one.
pub(crate) fn follow(log: &Log, state: &mut State, end: u64, known: Option<Known>) -> Result<()> {
    let (most, mut weight) = (log.settings.memory, state.weight());
    while state.at < end {
        let number = state.at + 1;
        let frame = log.frame(number).map_err(|error| gone(&frame_name(number), error))?;
        state.apply(&frame).map_err(|error| error.context(frame_name(number)))?;
        weight += State::growth(&frame);
        if weight > most {
            // Records count as something new also when they take something away.
            weight = state.weight();
        }
        if weight > most {
            let why = format!(
                "what the bucket says of its files takes more than the {} MiB of memory that are allowed for it",
                most >> 20
            );
            return Err(Error::new(Kind::Memory, why));
        }
        if known.is_some_and(|known| known.frame == number && known.sum != frame.sum) {
            return Err(gone_back(number));
        }
    }
    Ok(())
}

/// Errors when the log does not have what this host saw.
fn compare(log: &Log, known: Known, state: &State) -> Result<()> {
    if state.at < known.frame {
        return Err(gone_back(known.frame));
    }
    let sum = match log.frame(known.frame) {
        Ok(frame) => frame.sum,
        Err(error) if error.kind() == Kind::NotFound => return Err(gone_back(known.frame)),
        Err(error) => return Err(error),
    };
    if sum == known.sum { Ok(()) } else { Err(gone_back(known.frame)) }
}

fn gone_back(frame: u64) -> Error {
    let why = format!(
        "the bucket went back, or is another one: this host saw frame {frame} of its log, which is not \
         there as it was. --accept-older takes it as it is"
    );
    Error::new(Kind::Corrupt, why)
}
