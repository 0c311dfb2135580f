//! Verifies certificates by the rules of Go's `crypto/x509`, as etcd does.
//!
//! webpki, which rustls uses, refuses certificates that operators make themselves, such as a
//! self-signed certificate that is its own CA, or one of version 1; and it does not check the
//! dates, path length and key usage of the configured CAs. This module searches for a chain from
//! the certificate to a configured CA, and requires every certificate in it to be valid, the CA
//! included. It leaves only name constraints to webpki, which checks the chain that was found.

use crate::tls::certificate::Certificate;
use crate::tls::files::certificates;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature,
    verify_tls13_signature_with_raw_key,
};
use rustls::pki_types::{CertificateDer, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, RootCertStore,
    SignatureScheme,
};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Limit on the signatures verified for one certificate.
const SIGNATURES_MAX: usize = 100;

const ANY_PURPOSE: &[u8] = &[0x55, 0x1D, 0x25, 0x00];

/// The purpose for which a certificate is presented.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Purpose {
    Server,
    Client,
}

impl Purpose {
    fn identifier(self) -> &'static [u8] {
        match self {
            Purpose::Server => &[0x2B, 6, 1, 5, 5, 7, 3, 1],
            Purpose::Client => &[0x2B, 6, 1, 5, 5, 7, 3, 2],
        }
    }
}

/// Implements the methods of rustls's verifiers that check a handshake's signature.
///
/// rustls asks for the same methods where it verifies clients and where it verifies servers. Both leave
/// the work to the field of the verifier that has the `Authorities`.
macro_rules! verify_signatures {
    ($authorities:tt) => {
        fn verify_tls12_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signed: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            self.$authorities.verify_tls12(message, certificate, signed)
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signed: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            self.$authorities.verify_tls13(message, certificate, signed)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            self.$authorities.schemes()
        }
    };
}
pub(super) use verify_signatures;

/// The trusted CAs.
#[derive(Debug)]
pub struct Authorities {
    known: Vec<Certificate>,
    names: Vec<DistinguishedName>,
    provider: Arc<CryptoProvider>,
}

impl Authorities {
    /// Reads a bundle of CAs, and leaves out certificates that cannot be parsed.
    pub fn load(path: &Path, provider: Arc<CryptoProvider>) -> Result<Authorities, String> {
        let known: Vec<_> =
            certificates(path)?.iter().filter_map(|der| Certificate::parse(der)).collect();
        if known.is_empty() {
            return Err(format!("{}: no certificate in it can be read", path.display()));
        }
        let names = known.iter().map(|one| DistinguishedName::in_sequence(&one.subject)).collect();
        Ok(Authorities { known, names, provider })
    }

    /// The CAs' subject names, which a request for a client's certificate lists.
    pub fn names(&self) -> &[DistinguishedName] {
        &self.names
    }

    /// Verifies a certificate; `others` came with it and may be intermediate CAs.
    pub fn verify(
        &self,
        certificate: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        purpose: Purpose,
        now: UnixTime,
    ) -> Result<(), Error> {
        let parse = |der: &CertificateDer<'_>| {
            Certificate::parse(der).ok_or(Error::from(CertificateError::BadEncoding))
        };
        let certificate = parse(certificate)?;
        let others: Vec<_> = others.iter().map(parse).collect::<Result<_, _>>()?;
        check_dates(&certificate, now)?;
        if certificate.has_unknown_demands {
            return Err(CertificateError::UnhandledCriticalExtension.into());
        }
        let mut search = Search {
            authorities: self,
            others: &others,
            purpose,
            now,
            signatures_left: SIGNATURES_MAX,
            problem: CertificateError::UnknownIssuer.into(),
        };
        let is_believed = match self.known.iter().any(|one| one.der == certificate.der) {
            true => search.is_complete(&[&certificate]),
            false => search.extend(&mut vec![&certificate]),
        };
        if is_believed { Ok(()) } else { Err(search.problem) }
    }

    /// Verifies a handshake's signature in TLS 1.2 with the key of the presented certificate.
    pub fn verify_tls12(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let known = &self.provider.signature_verification_algorithms;
        let parsed = Certificate::parse(certificate).ok_or(CertificateError::BadEncoding)?;
        if parsed.is_v3 {
            return verify_tls12_signature(message, certificate, signed, known);
        }
        let candidates = known.mapping.iter().filter(|(scheme, _)| *scheme == signed.scheme);
        let is_genuine = candidates.flat_map(|(_, algorithms)| *algorithms).any(|algorithm| {
            *algorithm.public_key_alg_id() == *parsed.key_algorithm
                && algorithm.verify_signature(&parsed.key, message, signed.signature()).is_ok()
        });
        match is_genuine {
            true => Ok(HandshakeSignatureValid::assertion()),
            false => Err(CertificateError::BadSignature.into()),
        }
    }

    /// Verifies a handshake's signature in TLS 1.3 with the key of the presented certificate.
    pub fn verify_tls13(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let parsed = Certificate::parse(certificate).ok_or(CertificateError::BadEncoding)?;
        let key = SubjectPublicKeyInfoDer::from(parsed.key_info);
        let known = &self.provider.signature_verification_algorithms;
        verify_tls13_signature_with_raw_key(message, &key, signed, known)
    }

    pub fn schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// The search for a chain from a certificate to a trusted CA.
struct Search<'a> {
    authorities: &'a Authorities,
    others: &'a [Certificate],
    purpose: Purpose,
    now: UnixTime,
    signatures_left: usize,
    /// Why the last chain found was refused; `UnknownIssuer` if none was found.
    problem: Error,
}

impl<'a> Search<'a> {
    /// Tries all issuers of the chain's last certificate, trusted CAs first.
    fn extend(&mut self, chain: &mut Vec<&'a Certificate>) -> bool {
        let known = self.authorities.known.iter().map(|one| (one, true));
        let others = self.others.iter().map(|one| (one, false));
        for (issuer, is_known) in known.chain(others) {
            if !self.may_follow(chain, issuer, is_known) {
                continue;
            }
            chain.push(issuer);
            let is_believed = if is_known { self.is_complete(chain) } else { self.extend(chain) };
            chain.pop();
            if is_believed {
                return true;
            }
        }
        false
    }

    /// Whether `issuer` signed the chain's last certificate, and was allowed to.
    fn may_follow(&mut self, chain: &[&Certificate], issuer: &Certificate, is_known: bool) -> bool {
        let last = chain[chain.len() - 1];
        let is_in_chain = chain.iter().any(|one| {
            one.subject == issuer.subject
                && one.key_info == issuer.key_info
                && one.alternative_names == issuer.alternative_names
        });
        if last.issuer != issuer.subject || is_in_chain || self.signatures_left == 0 {
            return false;
        }
        // Certificates before version 3 cannot declare a CA; a trusted one counts as a CA.
        let is_authority = match issuer.is_authority {
            Some(says) => says,
            None => is_known && !issuer.is_v3,
        };
        if !is_authority
            || issuer.may_sign == Some(false)
            || issuer.has_unknown_demands
            || issuer.path_length.is_some_and(|max| chain.len() - 1 > max)
            || check_dates(issuer, self.now).is_err()
        {
            return false;
        }
        self.signatures_left -= 1;
        has_signed(issuer, last, &self.authorities.provider.signature_verification_algorithms)
    }

    /// Whether a chain that ends with a trusted CA is valid for the purpose.
    fn is_complete(&mut self, chain: &[&Certificate]) -> bool {
        let wanted = self.purpose.identifier();
        let is_for = |one: &&Certificate| match &one.purposes {
            None => true,
            Some(purposes) => purposes.iter().any(|each| each == wanted || each == ANY_PURPOSE),
        };
        if !chain.iter().all(is_for) {
            self.problem = CertificateError::InvalidPurpose.into();
            return false;
        }
        if !chain[1..].iter().any(|one| one.has_name_constraints) {
            return true;
        }
        match self.ask_library(chain) {
            Ok(()) => true,
            Err(problem) => {
                self.problem = problem;
                false
            }
        }
    }

    /// Lets webpki check a chain whose CAs constrain names.
    fn ask_library(&self, chain: &[&Certificate]) -> Result<(), Error> {
        let ders: Vec<_> = chain.iter().map(|one| CertificateDer::from(&one.der[..])).collect();
        let [certificate, between @ .., authority] = &ders[..] else {
            return Err(CertificateError::UnknownIssuer.into());
        };
        let mut roots = RootCertStore::empty();
        roots.add(authority.clone().into_owned())?;
        let provider = self.authorities.provider.clone();
        if self.purpose == Purpose::Server {
            let parsed = ParsedCertificate::try_from(certificate)?;
            let known = provider.signature_verification_algorithms.all;
            return verify_server_cert_signed_by_trust_anchor(
                &parsed, &roots, between, self.now, known,
            );
        }
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
            .build()
            .map_err(|error| Error::General(error.to_string()))?;
        verifier.verify_client_cert(certificate, between, self.now).map(|_| ())
    }
}

fn check_dates(certificate: &Certificate, now: UnixTime) -> Result<(), Error> {
    let seconds = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    let moment = |seconds: i64| {
        let seconds = u64::try_from(seconds).unwrap_or_default();
        UnixTime::since_unix_epoch(Duration::from_secs(seconds))
    };
    if seconds > certificate.not_after {
        let not_after = moment(certificate.not_after);
        return Err(CertificateError::ExpiredContext { time: now, not_after }.into());
    }
    if seconds < certificate.not_before {
        let not_before = moment(certificate.not_before);
        return Err(CertificateError::NotValidYetContext { time: now, not_before }.into());
    }
    Ok(())
}

fn has_signed(
    issuer: &Certificate,
    certificate: &Certificate,
    known: &WebPkiSupportedAlgorithms,
) -> bool {
    known.all.iter().any(|algorithm| {
        *algorithm.signature_alg_id() == *certificate.signature_algorithm
            && *algorithm.public_key_alg_id() == *issuer.key_algorithm
            && algorithm
                .verify_signature(&issuer.key, &certificate.signed, &certificate.signature)
                .is_ok()
    })
}
