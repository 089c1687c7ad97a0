"""Settings of a broker about authentication, authorization and encryption.

How a row is read: `ottla.config.kinds`.
"""

SECURITY = """
# Who may do what
authorizer.class.name     string "" - inert
    The class that decides; empty allows everything.
principal.builder.class class org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder - \
broker inert
    The Java class that turns a login into a principal.
connections.max.reauth.ms long   0  - inert
    A SASL session must be renewed after this; 0 is never.
security.providers        string -  - inert
    Java security providers to install.

# TLS
ssl.client.auth                       string   none            {required,requested,none} broker inert
    Whether clients must, may or need not show a certificate.
ssl.protocol                          string   TLSv1.3         -                broker inert
    The protocol that contexts are made for.
ssl.enabled.protocols                 list     TLSv1.2,TLSv1.3 -                broker inert
    The protocol versions allowed.
ssl.cipher.suites                     list     ""              -                broker inert
    The cipher suites allowed; empty allows the usual ones.
ssl.provider                          string   -               -                broker inert
    The Java provider of TLS.
ssl.keystore.type                     string   JKS             -                broker inert
    Format of the key store.
ssl.keystore.location                 string   -               -                broker inert
    File of the key store.
ssl.keystore.password                 password -               -                broker inert
    Its password.
ssl.keystore.key                      password -               -                broker inert
    The private key itself, as PEM.
ssl.keystore.certificate.chain        password -               -                broker inert
    The certificates for it, as PEM.
ssl.key.password                      password -               -                broker inert
    Password of the private key.
ssl.truststore.type                   string   JKS             -                broker inert
    Format of the trust store.
ssl.truststore.location               string   -               -                broker inert
    File of the trust store.
ssl.truststore.password               password -               -                broker inert
    Its password.
ssl.truststore.certificates           password -               -                broker inert
    The trusted certificates themselves, as PEM.
ssl.keymanager.algorithm              string   SunX509         -                broker inert
    Java's name of the key manager.
ssl.trustmanager.algorithm            string   PKIX            -                broker inert
    Java's name of the trust manager.
ssl.endpoint.identification.algorithm string   https           -                broker inert
    How host names are checked; empty checks none.
ssl.secure.random.implementation      string   -               -                broker inert
    Java's source of randomness.
ssl.engine.factory.class              class    -               -                broker inert
    A Java class that makes TLS engines.
ssl.principal.mapping.rules           string   DEFAULT         -                inert
    How a certificate's name becomes a user name.
ssl.allow.dn.changes                  boolean  false           -                inert
    Whether a new certificate may carry another name.
ssl.allow.san.changes                 boolean  false           -                inert
    Whether a new certificate may carry other host names.

# SASL
sasl.enabled.mechanisms               list     GSSAPI - broker inert
    The mechanisms offered to clients.
sasl.mechanism.inter.broker.protocol  string   GSSAPI - broker inert
    The mechanism among brokers.
sasl.mechanism.controller.protocol    string   GSSAPI - inert
    The mechanism towards controllers.
sasl.jaas.config                      password -      - broker inert
    Login settings in JAAS form.
sasl.server.callback.handler.class    class    -      - inert
    A Java class that checks logins.
sasl.server.max.receive.size          int      524288 - inert
    The largest login message taken.
sasl.client.callback.handler.class    class    -      - inert
    A Java class for our logins elsewhere.
sasl.login.class                      class    -      - inert
    A Java class that performs a login.
sasl.login.callback.handler.class     class    -      - inert
    A Java class that provides its credentials.
sasl.login.connect.timeout.ms         int      -      - inert
    How long connecting to a login server may take.
sasl.login.read.timeout.ms            int      -      - inert
    How long its answer may take.
sasl.login.retry.backoff.ms           long     100    - inert
    First pause after a failed login.
sasl.login.retry.backoff.max.ms       long     10000  - inert
    Longest pause after failed logins.
sasl.login.refresh.window.factor      double   0.8    - broker inert
    The share of a credential's life after which it is renewed.
sasl.login.refresh.window.jitter      double   0.05   - broker inert
    Random part of that share.
sasl.login.refresh.min.period.seconds short    60     - broker inert
    The shortest time between two renewals.
sasl.login.refresh.buffer.seconds     short    300    - broker inert
    Time to keep before expiry when renewing.

# Kerberos
sasl.kerberos.service.name               string -              - broker inert
    The service name of brokers.
sasl.kerberos.kinit.cmd                  string /usr/bin/kinit - broker inert
    Path of kinit.
sasl.kerberos.ticket.renew.window.factor double 0.8            - broker inert
    The share of a ticket's life after which it is renewed.
sasl.kerberos.ticket.renew.jitter        double 0.05           - broker inert
    Random part of that share.
sasl.kerberos.min.time.before.relogin    long   60000          - broker inert
    The shortest pause between two logins, in milliseconds.
sasl.kerberos.principal.to.local.rules   list   DEFAULT        - broker inert
    How a Kerberos name becomes a user name.

# OAuth
sasl.oauthbearer.token.endpoint.url                 string   -       -                inert
    Where tokens are issued.
sasl.oauthbearer.jwks.endpoint.url                  string   -       -                inert
    Where the keys to check tokens are found.
sasl.oauthbearer.jwks.endpoint.refresh.ms           long     3600000 -                inert
    How often those are fetched anew.
sasl.oauthbearer.jwks.endpoint.retry.backoff.ms     long     100     -                inert
    First pause after that failed.
sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms long     10000   -                inert
    Longest pause after failures.
sasl.oauthbearer.expected.audience                  list     ""      -                inert
    Audiences that a token must name one of.
sasl.oauthbearer.expected.issuer                    string   -       -                inert
    The issuer that a token must name.
sasl.oauthbearer.clock.skew.seconds                 int      30      -                inert
    How far clocks may differ when expiry is checked.
sasl.oauthbearer.scope                              string   -       -                inert
    The scope asked for with a token.
sasl.oauthbearer.scope.claim.name                   string   scope   -                inert
    The claim that holds the scope.
sasl.oauthbearer.sub.claim.name                     string   sub     -                inert
    The claim that holds the user.
sasl.oauthbearer.jwt.retriever.class class org.apache.kafka.common.security.oauthbearer.DefaultJwtRetriever - inert
    The Java class that fetches tokens.
sasl.oauthbearer.jwt.validator.class class org.apache.kafka.common.security.oauthbearer.DefaultJwtValidator - inert
    The Java class that checks tokens.
sasl.oauthbearer.client.credentials.client.id       string   -       -                inert
    Client id for the client-credentials grant.
sasl.oauthbearer.client.credentials.client.secret   password -       -                inert
    Its secret.
sasl.oauthbearer.assertion.algorithm                string   RS256   nocase{ES256,RS256} inert
    Signature of assertions that we make.
sasl.oauthbearer.assertion.file                     string   -       -                inert
    A ready-made assertion.
sasl.oauthbearer.assertion.template.file            string   -       -                inert
    Headers and claims to start an assertion from.
sasl.oauthbearer.assertion.private.key.file         string   -       -                inert
    The key that signs assertions.
sasl.oauthbearer.assertion.private.key.passphrase   password -       -                inert
    Its passphrase.
sasl.oauthbearer.assertion.claim.aud                string   -       -                inert
    Audience put into an assertion.
sasl.oauthbearer.assertion.claim.iss                string   -       -                inert
    Issuer put into an assertion.
sasl.oauthbearer.assertion.claim.sub                string   -       -                inert
    Subject put into an assertion.
sasl.oauthbearer.assertion.claim.exp.seconds        int      300     0..86400         inert
    Life of an assertion.
sasl.oauthbearer.assertion.claim.nbf.seconds        int      60      0..3600          inert
    How far in the past it becomes valid.
sasl.oauthbearer.assertion.claim.jti.include        boolean  false   -                inert
    Whether it gets an id of its own.

# Delegation tokens
delegation.token.secret.key               password -         -   inert
    Signs tokens; the same on all nodes. Not set: no tokens.
delegation.token.max.lifetime.ms          long     604800000 >=1 inert
    A token cannot be renewed beyond this.
delegation.token.expiry.time.ms           long     86400000  >=1 inert
    Life of a token that is not renewed.
delegation.token.expiry.check.interval.ms long     3600000   >=1 inert
    How often expired tokens are removed.
"""
