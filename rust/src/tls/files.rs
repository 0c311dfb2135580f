//! Reads certificates and keys from files; errors name the file that cannot be used.

use crate::tls::certificate::Certificate;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{Error, InconsistentKeys};
use std::path::Path;
use std::sync::Arc;

/// Kinds of keys that a certificate may have.
const KEYS: &str = "RSA with 2048 bits or more, ECDSA P-256 or P-384, Ed25519";

pub fn read(path: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))
}

pub fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&read(path)?).collect();
    match found {
        Ok(found) if found.is_empty() => Err(format!("{}: no certificate in it", path.display())),
        Ok(found) => Ok(found),
        Err(error) => Err(format!("{}: {error}", path.display())),
    }
}

/// Reads the certificate to present, and its key.
pub fn identity(
    cert_file: &Path,
    key_file: &Path,
    provider: &CryptoProvider,
) -> Result<Arc<SingleCertAndKey>, String> {
    let chain = certificates(cert_file)?;
    let (cert, key) = (cert_file.display(), key_file.display());
    let secret = PrivateKeyDer::from_pem_slice(&read(key_file)?)
        .map_err(|error| format!("{key}: {error}"))?;
    let own = Certificate::parse(&chain[0])
        .ok_or_else(|| format!("{cert} with {key}: the certificate cannot be read"))?;
    let secret = provider
        .key_provider
        .load_private_key(secret)
        .map_err(|_| format!("{cert} with {key}: the key is none of {KEYS}"))?;
    if secret.public_key().is_some_and(|public| *public != *own.key_info) {
        let error = Error::from(InconsistentKeys::KeyMismatch);
        return Err(format!("{cert} with {key}: {error}"));
    }
    Ok(Arc::new(CertifiedKey::new(chain, secret).into()))
}
