//! TLS towards a server: verifies its certificate and name, and presents ours if the server asks.

use crate::tls::chains::{Authorities, Purpose, verify_signatures};
use crate::tls::files::identity;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_name;
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{ClientConfig, DigitallySignedStruct, Error, SignatureScheme};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Files in which systems keep the CAs that they trust, the most common one first.
const SYSTEM_FILES: [&str; 6] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/tls/cacert.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// The settings of `kvorum.network.edge.upstream.UpstreamTls`, where each is documented.
pub struct TlsSettings {
    pub server_name: String,
    pub ca_file: Option<PathBuf>,
    pub cert_file: Option<PathBuf>,
    pub key_file: Option<PathBuf>,
    pub verify: bool,
}

/// Reads the files; the error names the one that cannot be used.
pub fn load(settings: &TlsSettings) -> Result<(Arc<ClientConfig>, ServerName<'static>), String> {
    let name = ServerName::try_from(settings.server_name.clone())
        .map_err(|_| format!("{:?} is no name of a server", settings.server_name))?;
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| format!("TLS versions: {error}"))?;
    let verifier: Arc<dyn ServerCertVerifier> = if settings.verify {
        Arc::new(Verified(authorities(settings, provider.clone())?))
    } else {
        Arc::new(Unverified(provider.clone()))
    };
    let builder = builder.dangerous().with_custom_certificate_verifier(verifier);
    let mut config = match (&settings.cert_file, &settings.key_file) {
        (None, None) => builder.with_no_client_auth(),
        (Some(cert_file), Some(key_file)) => {
            builder.with_client_cert_resolver(identity(cert_file, key_file, &provider)?)
        }
        (Some(file), None) => return Err(format!("{}: its key is missing", file.display())),
        (None, Some(file)) => {
            return Err(format!("{}: its certificate is missing", file.display()));
        }
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok((Arc::new(config), name))
}

fn authorities(
    settings: &TlsSettings,
    provider: Arc<CryptoProvider>,
) -> Result<Authorities, String> {
    let named = std::env::var_os("SSL_CERT_FILE").map(PathBuf::from);
    let file = match settings.ca_file.clone().or(named) {
        Some(file) => file,
        None => SYSTEM_FILES
            .iter()
            .map(Path::new)
            .find(|file| file.exists())
            .ok_or("the system's authorities were not found: name a file of them")?
            .to_owned(),
    };
    Authorities::load(&file, provider)
}

/// Accepts the certificates that trusted CAs have issued for the server's name.
#[derive(Debug)]
struct Verified(Authorities);

impl ServerCertVerifier for Verified {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.0.verify(end_entity, intermediates, Purpose::Server, now)?;
        verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)?;
        Ok(ServerCertVerified::assertion())
    }

    verify_signatures!(0);
}

/// Accepts any certificate whose key the server has.
#[derive(Debug)]
struct Unverified(Arc<CryptoProvider>);

impl ServerCertVerifier for Unverified {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, signed, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, signed, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
