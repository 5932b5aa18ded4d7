//! Stores behind the protocol of S3, by the crate `object_store`.
//!
//! Credentials come from the environment, or from the machine's role, as that crate knows them; this one sees
//! none. What a store answers with an error is not shown but for its code: an answer may have the names of keys.

use std::{sync::Arc, time::Duration};

use futures_util::StreamExt;
use object_store::{
    ClientOptions, Error as StoreError, GetOptions, GetRange, ObjectStore, ObjectStoreExt, PutMode,
    PutOptions, PutPayload, RetryConfig,
    aws::{AmazonS3, AmazonS3Builder, S3ConditionalPut},
    path::Path,
};
use onefold_core::{Error, Kind, Result};
use tokio::runtime::{Builder, Runtime};

use crate::objects::{Body, Created, Listed, Objects};

/// How long a request may take: a pack over a slow line.
const REQUEST: Duration = Duration::from_secs(300);

/// How long connecting may take.
const CONNECT: Duration = Duration::from_secs(10);

/// Objects of one page of a listing.
const PAGE: usize = 1000;

/// Begins addresses of the service by which machines of a cloud learn their role.
const MACHINE_ROLE: &str = "169.254.";

/// Objects of one bucket, below a prefix.
pub struct S3 {
    store: Arc<AmazonS3>,
    runtime: Runtime,
    bucket: String,
    /// Empty, or ends in a slash.
    prefix: String,
}

impl S3 {
    /// The objects of a bucket below a prefix, which may be empty. Nothing is asked of the store yet.
    ///
    /// # Errors
    /// `InvalidInput` when the environment or the address has what can't be meant.
    pub fn open(bucket: &str, prefix: &str) -> Result<S3> {
        let client = ClientOptions::new().with_timeout(REQUEST).with_connect_timeout(CONNECT);
        let allow_http = std::env::var("AWS_ALLOW_HTTP").is_ok_and(|value| value == "true");
        let client = client.with_allow_http(allow_http);
        // What may pass is asked again by our own rules: a creation must not be, as something else may be meant.
        let retry = RetryConfig { max_retries: 0, ..RetryConfig::default() };
        let built = AmazonS3Builder::from_env()
            .with_bucket_name(bucket)
            .with_client_options(client)
            .with_retry(retry)
            .with_conditional_put(S3ConditionalPut::ETagMatch)
            .build();
        let store = built.map_err(|error| {
            let why = format!("s3://{bucket} can't be opened: {error}");
            Error::new(Kind::InvalidInput, why)
        })?;
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let runtime = runtime.map_err(|e| Error::from_io("can't reach object stores", e))?;
        let prefix = prefix.trim_matches('/');
        let prefix = if prefix.is_empty() { String::new() } else { format!("{prefix}/") };
        Ok(S3 { store: Arc::new(store), runtime, bucket: bucket.to_owned(), prefix })
    }

    fn path(&self, name: &str) -> Path {
        Path::from(format!("{}{name}", self.prefix))
    }

    /// A sentence for an error, without what the store said but for its code.
    fn told(&self, name: &str, error: &StoreError) -> Error {
        let text = format!("{error:?} {error}");
        let code = code_of(&text);
        let bucket = &self.bucket;
        let at = |why: &str| format!("s3://{bucket}: {why}");
        let (kind, why) = match error {
            _ if code == Some("NoSuchBucket") => {
                (Kind::InvalidInput, at("there is no bucket of that name"))
            }
            StoreError::NotFound { .. } => {
                (Kind::NotFound, format!("s3://{bucket}/{}{name} is not there", self.prefix))
            }
            StoreError::AlreadyExists { .. } => (Kind::Exists, at(&format!("{name} is there"))),
            StoreError::PermissionDenied { .. } | StoreError::Unauthenticated { .. } => {
                let code = code.unwrap_or("AccessDenied");
                let why = format!(
                    "the store refuses ({code}): the credentials of the environment, such as \
                     AWS_ACCESS_KEY_ID, are missing or have no right to this"
                );
                (Kind::Denied, at(&why))
            }
            StoreError::NotImplemented { .. } | StoreError::NotSupported { .. } => {
                (Kind::Unsupported, at("the store can't do what Onefold needs"))
            }
            _ if text.contains(MACHINE_ROLE) => {
                let why = "there are no credentials: set AWS_ACCESS_KEY_ID and \
                           AWS_SECRET_ACCESS_KEY in the environment (this machine has no role of a cloud)";
                (Kind::Denied, at(why))
            }
            _ => match (code, outermost(error)) {
                (Some(code), _) => (Kind::Io, at(&format!("the store answers {code}"))),
                (None, why) => (Kind::Io, at(&format!("the store can't be reached: {why}"))),
            },
        };
        Error::new(kind, why)
    }
}

/// The code in an answer of S3.
fn code_of(text: &str) -> Option<&str> {
    let code = text.split_once("<Code>")?.1.split_once("</Code>")?.0;
    let plain =
        !code.is_empty() && code.len() < 64 && code.bytes().all(|b| b.is_ascii_alphanumeric());
    plain.then_some(code)
}

/// The innermost reason of an error: what the system said, without addresses and headers.
fn outermost(error: &StoreError) -> String {
    let mut last: &dyn std::error::Error = error;
    while let Some(source) = last.source() {
        last = source;
    }
    let text = last.to_string();
    let plain: String = text.chars().filter(|c| !c.is_control()).take(200).collect();
    plain
}

impl Objects for S3 {
    fn get(&self, name: &str, at: u64, bytes: u64) -> Result<Body> {
        let options = GetOptions {
            range: Some(GetRange::Bounded(at..at.saturating_add(bytes.max(1)))),
            ..GetOptions::default()
        };
        let path = self.path(name);
        self.runtime.block_on(async {
            let found = self.store.get_opts(&path, options).await;
            let found = found.map_err(|error| self.told(name, &error))?;
            let (total, modified) = (found.meta.size, found.meta.last_modified.timestamp());
            // Whatever the store sends, no more than was asked for is taken.
            let mut body = Vec::new();
            let mut stream = found.into_stream();
            while let Some(part) = stream.next().await {
                let part = part.map_err(|error| self.told(name, &error))?;
                let rest = usize::try_from(bytes).unwrap_or(usize::MAX) - body.len();
                body.extend_from_slice(&part[..part.len().min(rest)]);
                if part.len() >= rest {
                    break;
                }
            }
            Ok(Body { bytes: body, total, modified: u64::try_from(modified).unwrap_or(0) })
        })
    }

    fn create(&self, name: &str, bytes: &[u8]) -> Created {
        let (path, payload) = (self.path(name), PutPayload::from(bytes.to_vec()));
        let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
        let ended = self.runtime.block_on(self.store.put_opts(&path, payload, options));
        match ended {
            Ok(_) => Created::New,
            Err(StoreError::AlreadyExists { .. }) => Created::Exists,
            Err(error) => {
                let error = self.told(name, &error);
                Created::Unknown(match error.kind() {
                    // Of a creation it means that two were under way at once.
                    Kind::NotFound | Kind::Exists => Error::new(Kind::Io, error.to_string()),
                    _ => error,
                })
            }
        }
    }

    fn replace(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let (path, payload) = (self.path(name), PutPayload::from(bytes.to_vec()));
        let ended = self.runtime.block_on(self.store.put(&path, payload));
        ended.map(drop).map_err(|error| self.told(name, &error))
    }

    fn delete(&self, name: &str) -> Result<()> {
        let path = self.path(name);
        match self.runtime.block_on(self.store.delete(&path)) {
            Ok(()) | Err(StoreError::NotFound { .. }) => Ok(()),
            Err(error) => Err(self.told(name, &error)),
        }
    }

    fn list(&self, folder: &str, after: &str) -> Result<Vec<Listed>> {
        let (prefix, offset) = (self.path(folder.trim_end_matches('/')), self.path(after));
        self.runtime.block_on(async {
            let mut stream = self.store.list_with_offset(Some(&prefix), &offset);
            let mut listed = Vec::new();
            while let Some(found) = stream.next().await {
                let found = found.map_err(|error| self.told(folder, &error))?;
                let whole = found.location.to_string();
                if let Some(name) = whole.strip_prefix(&self.prefix)
                    && name > after
                {
                    listed.push(Listed { name: name.to_owned(), bytes: found.size });
                }
                if listed.len() == PAGE {
                    break;
                }
            }
            listed.sort_by(|one, other| one.name.cmp(&other.name));
            Ok(listed)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_code_of_an_answer_is_taken() {
        let text =
            "x <Error><Code>NoSuchBucket</Code><AWSAccessKeyId>AKIA</AWSAccessKeyId></Error>";
        assert_eq!(code_of(text), Some("NoSuchBucket"));
        assert_eq!(code_of("<Code>a b</Code>"), None);
        assert_eq!(code_of("no code"), None);
    }
}
