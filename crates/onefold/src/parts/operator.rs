//! The operator's word for the whole process, and what the operator is told beside a result.

use std::sync::OnceLock;

use onefold_backend::Word;

static WORD: OnceLock<Word> = OnceLock::new();
static WARN: OnceLock<fn(&str)> = OnceLock::new();

/// Takes the operator's word, and the function that shows warnings; once, before anything is
/// opened. Without it there is no word, and warnings go to the log.
pub fn give(word: Word, warn: fn(&str)) {
    // They are given once, at the beginning.
    let _ = WORD.set(word);
    let _ = WARN.set(warn);
}

/// The facts for which the operator gave their word.
#[must_use]
pub fn word() -> Word {
    WORD.get().copied().unwrap_or_default()
}

/// Tells something that does not keep anybody from their work.
pub fn warn(sentence: &str) {
    match WARN.get() {
        Some(show) => show(sentence),
        None => tracing::warn!("{sentence}"),
    }
}
