//! `onefold create archive --placement`: where containers go, and with which codes.

use clap::Args;
use onefold_archive::{GATHERS_MAX, Placement, Rad};

use onefold_console::{failure::Failure, size::Size};

/// Shards with and without parity.
type Code = (usize, usize);

/// Memory of a process for new chunks that are encoded at once, unless another is given.
const GATHERS: u64 = 256 << 20;

/// How containers are placed on several nodes.
#[derive(Debug, Args)]
pub(super) struct Placed {
    /// Where containers go: round-robin encodes containers as they arrive; rad keeps copies of new
    /// chunks, and encodes them by their reference counts when these no longer change, or at once
    /// with --delay 0
    #[arg(long, value_name = "KIND")]
    placement: Option<Placement>,
    /// With rad: number of puts during which the counts of a container must not have changed; 1
    /// unless given. With 0, puts and backups keep new chunks in memory, sort them by how often they
    /// came, and encode them at once, without copies first
    #[arg(long, value_name = "VERSIONS")]
    delay: Option<u32>,
    /// With rad: least number of versions whose containers are sorted together; 1 unless given. With
    /// --delay 0: memory of a process for chunks that are sorted together, from 1M to 16G; 256M
    /// unless given
    #[arg(long, value_name = "VERSIONS|SIZE")]
    batch: Option<String>,
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
    /// Encoding by reference counts, if that is what is asked for.
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
        let delay = self.delay.unwrap_or(1);
        let (batch, gathers) =
            if delay == 0 { (1, self.gathers()?) } else { (self.versions()?, 0) };
        let rad = Rad { delay, batch, classes: codes.map(|(_, k)| narrow(k)), gathers };
        rad.check([narrow(nodes), narrow(k), narrow(n - k)])?;
        Ok(Some(rad))
    }

    /// Versions of a batch.
    fn versions(&self) -> Result<u32, Failure> {
        let Some(text) = &self.batch else { return Ok(1) };
        text.parse().map_err(|_| {
            Failure::new(format!(
                "--batch is a number of versions, not '{text}'; it is a size with --delay 0 only"
            ))
        })
    }

    /// KiB of memory for a batch.
    fn gathers(&self) -> Result<u32, Failure> {
        let size = match &self.batch {
            Some(text) => text.parse::<Size>()?.0,
            None => GATHERS,
        };
        if (1 << 20..=u64::from(GATHERS_MAX) << 10).contains(&size) {
            Ok((size >> 10) as u32)
        } else {
            Err(Failure::new("with --delay 0, --batch is memory from 1M to 16G; 256M unless given"))
        }
    }
}
