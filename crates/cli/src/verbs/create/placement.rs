//! `onefold create archive --placement`: where containers go, and with which codes.

use clap::Args;
use onefold_archive::{Placement, Rad};

use onefold_console::failure::Failure;

/// Shards with and without parity.
type Code = (usize, usize);

/// How containers are placed on several nodes.
#[derive(Debug, Args)]
pub(super) struct Placed {
    /// Where containers go: round-robin encodes containers as they arrive; rad keeps copies of new
    /// chunks, and encodes them by their reference counts when these no longer change
    #[arg(long, value_name = "KIND")]
    placement: Option<Placement>,
    /// With rad: number of puts during which the counts of a container must not have changed; 1
    /// unless given
    #[arg(long, value_name = "VERSIONS")]
    delay: Option<u32>,
    /// With rad: least number of versions whose containers are sorted together; 1 unless given
    #[arg(long, value_name = "VERSIONS")]
    batch: Option<u32>,
    /// With rad: codes for chunks with one reference, for those between, and for those with the
    /// most references. Each has as much parity as --code, which is used for all three unless given
    #[arg(long, value_name = "COLD:BASELINE:HOT", value_parser = class_codes)]
    class_codes: Option<[Code; 3]>,
}

/// A code, as it is written in options.
pub(super) fn code(text: &str) -> Result<(usize, usize), String> {
    let numbers = text
        .split_once(',')
        .and_then(|(n, k)| Some((n.trim().parse().ok()?, k.trim().parse().ok()?)));
    numbers.ok_or_else(|| "a code is two numbers N,K: shards with and without parity".to_owned())
}

fn class_codes(text: &str) -> Result<[Code; 3], String> {
    let codes: Option<Vec<Code>> = text.split(':').map(|one| code(one).ok()).collect();
    let three = codes.and_then(|codes| <[Code; 3]>::try_from(codes).ok());
    three.ok_or_else(|| {
        "class codes are three codes N,K with colons between them, as in 14,12:10,8:6,4".to_owned()
    })
}

impl Placed {
    /// Late encoding, if that is what is asked for.
    ///
    /// # Errors
    /// One sentence for what does not fit together.
    pub(super) fn late(&self, nodes: usize, code: Option<Code>) -> Result<Option<Rad>, Failure> {
        if self.placement != Some(Placement::Rad) {
            let more = self.delay.is_some() || self.batch.is_some() || self.class_codes.is_some();
            return if more {
                Err(Failure::new("--delay, --batch and --class-codes go with --placement rad"))
            } else {
                Ok(None)
            };
        }
        let Some((n, k)) = code.filter(|(n, k)| n > k) else {
            return Err(Failure::new("--placement rad needs --nodes, and a --code with parity"));
        };
        let codes = self.class_codes.unwrap_or([(n, k); 3]);
        if codes.iter().any(|&(of, data)| of.checked_sub(data) != Some(n - k)) {
            return Err(Failure::new(format!(
                "all codes of an archive have the same parity: {} shards, as --code {n},{k} has",
                n - k
            )));
        }
        let narrow = |n: usize| u8::try_from(n).unwrap_or(u8::MAX);
        let rad = Rad {
            delay: self.delay.unwrap_or(1),
            batch: self.batch.unwrap_or(1),
            classes: codes.map(|(_, k)| narrow(k)),
        };
        rad.check([narrow(nodes), narrow(k), narrow(n - k)])?;
        Ok(Some(rad))
    }
}
