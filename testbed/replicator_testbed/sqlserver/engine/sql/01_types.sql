-- What every database of the model has: collations, types and the operators that T-SQL expects.
CREATE SCHEMA sqlserver;
CREATE SCHEMA sys;
CREATE SCHEMA dbo;
CREATE SCHEMA msdb;

-- Collations. _CI_AS ignores case and heeds accents; _BIN2 compares code points. Their order is ICU's, not SQL Server's.
CREATE COLLATION sqlserver."SQL_Latin1_General_CP1_CI_AS" (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
CREATE COLLATION sqlserver."Latin1_General_CI_AS" (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
CREATE COLLATION sqlserver."Latin1_General_100_CI_AS_SC_UTF8" (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
CREATE COLLATION sqlserver."Polish_CI_AS" (provider = icu, locale = 'pl-u-ks-level2', deterministic = false);
CREATE COLLATION sqlserver."SQL_Latin1_General_CP1_CS_AS" (provider = icu, locale = 'und');
CREATE COLLATION sqlserver."Latin1_General_CS_AS" (provider = icu, locale = 'und');
CREATE COLLATION sqlserver."Latin1_General_BIN2" (provider = libc, locale = 'C');
CREATE COLLATION sqlserver."Latin1_General_100_BIN2_UTF8" (provider = libc, locale = 'C');

-- One row for each type that a column can have: SQL Server's facts beside PostgreSQL's type.
CREATE TABLE sqlserver.types (
  pg_type oid PRIMARY KEY,
  name text NOT NULL,
  type_name text NOT NULL,
  system_type_id int NOT NULL,
  max_length int NOT NULL,
  precision_digits int NOT NULL,
  scale_digits int NOT NULL,
  is_text boolean NOT NULL,
  user_type_id int NOT NULL
);

-- An instant and the offset that it was written with.
CREATE TYPE sqlserver.instant AS (utc timestamp, minutes int);

-- A geometry or geography: its spatial reference, and its text with Z and M.
CREATE TYPE sqlserver.shape AS (srid int, wkt text);

-- Conversions. Each is overloaded by what is converted; the translation calls them for CAST, CONVERT and assignments.

-- The seventh digit of a second is cut off: PostgreSQL has six, and would round it into the next second, day or year.
CREATE FUNCTION sqlserver.to_timestamp2(value text) RETURNS timestamp IMMUTABLE LANGUAGE sql AS
$$ SELECT regexp_replace(value COLLATE "C", '(\.\d{6})\d+', '\1')::timestamp $$;
CREATE FUNCTION sqlserver.to_timestamp2(value timestamp) RETURNS timestamp IMMUTABLE LANGUAGE sql AS $$ SELECT value $$;
CREATE FUNCTION sqlserver.to_timestamp2(value date) RETURNS timestamp IMMUTABLE LANGUAGE sql AS $$ SELECT value::timestamp $$;
CREATE FUNCTION sqlserver.to_timestamp2(value sqlserver.instant) RETURNS timestamp IMMUTABLE LANGUAGE sql AS
$$ SELECT (value).utc + make_interval(mins => (value).minutes) $$;
CREATE FUNCTION sqlserver.to_time2(value text) RETURNS time IMMUTABLE LANGUAGE sql AS
$$ SELECT regexp_replace(value COLLATE "C", '(\.\d{6})\d+', '\1')::time $$;
CREATE FUNCTION sqlserver.to_time2(value time) RETURNS time IMMUTABLE LANGUAGE sql AS $$ SELECT value $$;
CREATE FUNCTION sqlserver.to_time2(value timestamp) RETURNS time IMMUTABLE LANGUAGE sql AS $$ SELECT value::time $$;
CREATE FUNCTION sqlserver.to_date2(value text) RETURNS date IMMUTABLE LANGUAGE sql AS $$ SELECT value::date $$;
CREATE FUNCTION sqlserver.to_date2(value timestamp) RETURNS date IMMUTABLE LANGUAGE sql AS $$ SELECT value::date $$;
CREATE FUNCTION sqlserver.to_date2(value date) RETURNS date IMMUTABLE LANGUAGE sql AS $$ SELECT value $$;

CREATE FUNCTION sqlserver.to_instant(value text) RETURNS sqlserver.instant IMMUTABLE LANGUAGE plpgsql AS $$
DECLARE
  parts text[] := regexp_match(value COLLATE "C", '^\s*(.*?)\s*(?:(Z)|([+-])(\d{1,2}):?(\d{2}))?\s*$');
  offset_minutes int := 0;
BEGIN
  IF value IS NULL THEN RETURN NULL; END IF;
  IF left(value, 1) = '(' THEN RETURN value::sqlserver.instant; END IF;
  IF parts[1] ~ '^[0-9]{4}-[0-9]{2}$' THEN RETURN ROW(sqlserver.to_timestamp2(value), 0)::sqlserver.instant; END IF;
  IF parts[3] IS NOT NULL THEN
    offset_minutes := (parts[4]::int * 60 + parts[5]::int) * CASE parts[3] WHEN '-' THEN -1 ELSE 1 END;
  END IF;
  RETURN ROW(sqlserver.to_timestamp2(parts[1]) - make_interval(mins => offset_minutes), offset_minutes)::sqlserver.instant;
END $$;
CREATE FUNCTION sqlserver.to_instant(value timestamp) RETURNS sqlserver.instant IMMUTABLE LANGUAGE sql AS $$ SELECT ROW(value, 0)::sqlserver.instant $$;
CREATE FUNCTION sqlserver.to_instant(value sqlserver.instant) RETURNS sqlserver.instant IMMUTABLE LANGUAGE sql AS $$ SELECT value $$;

-- datetime knows .000, .003 and .007 s [DOC: datetime, rounding of datetime fractional second precision].
CREATE FUNCTION sqlserver.to_datetime(value timestamp) RETURNS timestamp(3) IMMUTABLE LANGUAGE sql AS $$
  SELECT date_trunc('second', value)
    + make_interval(secs => round(round(extract(microseconds FROM value) % 1000000 * 300 / 1000000) / 300, 3)::float8)
$$;
CREATE FUNCTION sqlserver.to_datetime(value text) RETURNS timestamp(3) IMMUTABLE LANGUAGE sql AS $$ SELECT sqlserver.to_datetime(sqlserver.to_timestamp2(value)) $$;
CREATE FUNCTION sqlserver.to_datetime(value sqlserver.instant) RETURNS timestamp(3) IMMUTABLE LANGUAGE sql AS $$ SELECT sqlserver.to_datetime(sqlserver.to_timestamp2(value)) $$;
-- smalldatetime is rounded to the minute; 29.998 s and less go down [DOC: smalldatetime].
CREATE FUNCTION sqlserver.to_smalldatetime(value timestamp) RETURNS timestamp(0) IMMUTABLE LANGUAGE sql AS $$
  SELECT date_trunc('minute', value + interval '30.001 seconds')
$$;
CREATE FUNCTION sqlserver.to_smalldatetime(value text) RETURNS timestamp(0) IMMUTABLE LANGUAGE sql AS $$ SELECT sqlserver.to_smalldatetime(sqlserver.to_timestamp2(value)) $$;

-- What is not 0 is 1 [DOC: bit].
CREATE FUNCTION sqlserver.to_bit(value numeric) RETURNS int2 IMMUTABLE LANGUAGE sql AS $$ SELECT CASE WHEN value <> 0 THEN 1 WHEN value = 0 THEN 0 END::int2 $$;
CREATE FUNCTION sqlserver.to_bit(value text) RETURNS int2 IMMUTABLE LANGUAGE sql AS $$
  SELECT CASE lower(value COLLATE "C") WHEN 'true' THEN 1 WHEN 'false' THEN 0 ELSE sqlserver.to_bit(value::numeric) END::int2
$$;

-- Binaries are cut, and padded with zeros where their length is fixed [DOC: binary and varbinary].
CREATE FUNCTION sqlserver.to_binary(value bytea, size int, pads int) RETURNS bytea IMMUTABLE LANGUAGE sql AS $$
  SELECT CASE WHEN length(value) < size AND pads = 1 THEN value || decode(repeat('00', size - length(value)), 'hex') ELSE substr(value, 1, size) END
$$;
-- The bytes of a text by its type and its collation: nvarchar is UTF-16, varchar of a collation of UTF-8 that, other varchar its code page
-- [DOC: nchar and nvarchar; Collation and Unicode support, UTF-8]. The translation knows which. U+FFFE stands for a character of code 0.
CREATE FUNCTION sqlserver.utf16_bytes(value text) RETURNS bytea IMMUTABLE STRICT LANGUAGE sql AS $$
  SELECT coalesce(string_agg(CASE WHEN code < 65536 THEN substr(int4send(code), 4, 1) || substr(int4send(code), 3, 1)
    ELSE substr(int4send(55296 + (code - 65536) / 1024), 4, 1) || substr(int4send(55296 + (code - 65536) / 1024), 3, 1)
      || substr(int4send(56320 + (code - 65536) % 1024), 4, 1) || substr(int4send(56320 + (code - 65536) % 1024), 3, 1) END, '' ORDER BY at), '')
  FROM (SELECT CASE WHEN c = U&'\FFFE' THEN 0 ELSE ascii(c) END AS code, at
    FROM regexp_split_to_table(value COLLATE "C", '') WITH ORDINALITY AS each(c, at) WHERE c <> '') AS codes
$$;
CREATE FUNCTION sqlserver.utf8_bytes(value text) RETURNS bytea IMMUTABLE STRICT LANGUAGE sql AS $$
  SELECT coalesce(string_agg(convert_to(part, 'UTF8'), '\x00'::bytea ORDER BY at), '')
  FROM string_to_table(value COLLATE "C", U&'\FFFE') WITH ORDINALITY AS parts(part, at)
$$;
CREATE FUNCTION sqlserver.page_bytes(value text) RETURNS bytea IMMUTABLE STRICT LANGUAGE sql AS $$
  SELECT coalesce(string_agg(convert_to(part, 'WIN1252'), '\x00'::bytea ORDER BY at), '')
  FROM string_to_table(value COLLATE "C", U&'\FFFE') WITH ORDINALITY AS parts(part, at)
$$;
CREATE FUNCTION sqlserver.utf8_length(value text) RETURNS int IMMUTABLE STRICT LANGUAGE sql AS $$ SELECT octet_length(replace(value COLLATE "C", U&'\FFFE', ' ')) $$;
CREATE FUNCTION sqlserver.page_length(value text) RETURNS int IMMUTABLE STRICT LANGUAGE sql AS $$ SELECT char_length(value) $$;
-- A char keeps its blanks, which PostgreSQL's cast drops.
CREATE FUNCTION sqlserver.utf16_bytes(value bpchar) RETURNS bytea IMMUTABLE STRICT LANGUAGE sql AS $$ SELECT sqlserver.utf16_bytes(concat(value)) $$;
CREATE FUNCTION sqlserver.utf8_bytes(value bpchar) RETURNS bytea IMMUTABLE STRICT LANGUAGE sql AS $$ SELECT sqlserver.utf8_bytes(concat(value)) $$;
CREATE FUNCTION sqlserver.page_bytes(value bpchar) RETURNS bytea IMMUTABLE STRICT LANGUAGE sql AS $$ SELECT sqlserver.page_bytes(concat(value)) $$;
CREATE FUNCTION sqlserver.utf8_length(value bpchar) RETURNS int IMMUTABLE STRICT LANGUAGE sql AS $$ SELECT sqlserver.utf8_length(concat(value)) $$;
CREATE FUNCTION sqlserver.page_length(value bpchar) RETURNS int IMMUTABLE STRICT LANGUAGE sql AS $$ SELECT char_length(concat(value)) $$;
CREATE FUNCTION sqlserver.hashbytes(value bytea) RETURNS bytea IMMUTABLE STRICT LANGUAGE sql AS $$ SELECT sha256(value) $$;

-- A binary is cast to an integer as its bytes, the highest first; the missing ones are zeros [DOC: binary and varbinary, converting; K].
CREATE FUNCTION sqlserver.bytes_to_bigint(value bytea) RETURNS int8 IMMUTABLE STRICT LANGUAGE sql AS $$
  SELECT ('x' || encode(substr(decode(repeat('00', 8), 'hex') || value, length(value) + 1), 'hex'))::bit(64)::int8
$$;
CREATE FUNCTION sqlserver.bytes_to_int(value bytea) RETURNS int4 IMMUTABLE STRICT LANGUAGE sql AS $$
  SELECT ('x' || encode(substr(decode(repeat('00', 4), 'hex') || value, length(value) + 1), 'hex'))::bit(32)::int4
$$;
CREATE CAST (bytea AS int8) WITH FUNCTION sqlserver.bytes_to_bigint(bytea);
CREATE CAST (bytea AS int4) WITH FUNCTION sqlserver.bytes_to_int(bytea);

-- How often the clock shows another day or microsecond from one time to another [DOC: DATEDIFF, DATEDIFF_BIG].
CREATE FUNCTION sqlserver.days_between(one timestamp, other timestamp) RETURNS int IMMUTABLE STRICT LANGUAGE sql AS $$
  SELECT other::date - one::date
$$;
CREATE FUNCTION sqlserver.microseconds_between(one timestamp, other timestamp) RETURNS int8 IMMUTABLE STRICT LANGUAGE sql AS $$
  SELECT ((extract(epoch FROM other) - extract(epoch FROM one)) * 1000000)::int8
$$;
CREATE FUNCTION sqlserver.microseconds_between(one time, other time) RETURNS int8 IMMUTABLE STRICT LANGUAGE sql AS $$
  SELECT ((extract(epoch FROM other) - extract(epoch FROM one)) * 1000000)::int8
$$;
-- CONVERT of a text to a binary: style 1 has the 0x in front, 2 has none [DOC: CAST and CONVERT, binary styles].
CREATE FUNCTION sqlserver.to_bytes(value text, style int) RETURNS bytea IMMUTABLE LANGUAGE sql AS $$
  SELECT CASE style WHEN 0 THEN convert_to(value, 'UTF8') WHEN 1 THEN decode(substr(value, 3), 'hex') ELSE decode(value, 'hex') END
$$;
CREATE FUNCTION sqlserver.to_bytes(value bytea, style int) RETURNS bytea IMMUTABLE LANGUAGE sql AS $$ SELECT value $$;
CREATE FUNCTION sqlserver.to_bytes(value int, style int) RETURNS bytea IMMUTABLE LANGUAGE sql AS $$ SELECT int4send(value) $$;
CREATE FUNCTION sqlserver.to_bytes(value bigint, style int) RETURNS bytea IMMUTABLE LANGUAGE sql AS $$ SELECT int8send(value) $$;

CREATE FUNCTION sqlserver.text_of(value text, style int) RETURNS text IMMUTABLE LANGUAGE sql AS $$ SELECT value $$;
-- A char keeps its blanks, which PostgreSQL's cast drops.
CREATE FUNCTION sqlserver.text_of(value bpchar, style int) RETURNS text IMMUTABLE LANGUAGE sql AS $$ SELECT CASE WHEN value IS NOT NULL THEN concat(value) END $$;
CREATE FUNCTION sqlserver.text_of(value bytea, style int) RETURNS text IMMUTABLE LANGUAGE sql AS $$
  SELECT CASE style WHEN 0 THEN convert_from(value, 'UTF8') WHEN 1 THEN '0x' || upper(encode(value, 'hex')) ELSE upper(encode(value, 'hex')) END
$$;
CREATE FUNCTION sqlserver.text_of(value uuid, style int) RETURNS text IMMUTABLE LANGUAGE sql AS $$ SELECT upper(value::text) $$;
CREATE FUNCTION sqlserver.text_of(value numeric, style int) RETURNS text IMMUTABLE LANGUAGE sql AS $$ SELECT value::text $$;
CREATE FUNCTION sqlserver.text_of(value float8, style int) RETURNS text IMMUTABLE LANGUAGE sql AS $$ SELECT value::text $$;
CREATE FUNCTION sqlserver.text_of(value int, style int) RETURNS text IMMUTABLE LANGUAGE sql AS $$ SELECT value::text $$;
CREATE FUNCTION sqlserver.text_of(value bigint, style int) RETURNS text IMMUTABLE LANGUAGE sql AS $$ SELECT value::text $$;
CREATE FUNCTION sqlserver.text_of(value date, style int) RETURNS text IMMUTABLE LANGUAGE sql AS $$ SELECT to_char(value, 'YYYY-MM-DD') $$;
CREATE FUNCTION sqlserver.text_of(value time, style int) RETURNS text IMMUTABLE LANGUAGE sql AS $$ SELECT value::text $$;
-- Styles 121 and 126, with the digits that PostgreSQL has [DOC: CAST and CONVERT, date and time styles].
CREATE FUNCTION sqlserver.text_of(value timestamp, style int) RETURNS text IMMUTABLE LANGUAGE sql AS $$
  SELECT to_char(value, CASE style WHEN 126 THEN 'YYYY-MM-DD"T"HH24:MI:SS.US' ELSE 'YYYY-MM-DD HH24:MI:SS.US' END)
$$;
CREATE FUNCTION sqlserver.text_of(value sqlserver.instant, style int) RETURNS text IMMUTABLE LANGUAGE sql AS $$
  SELECT to_char((value).utc + make_interval(mins => (value).minutes), 'YYYY-MM-DD HH24:MI:SS.US')
    || CASE WHEN (value).minutes < 0 THEN ' -' ELSE ' +' END
    || to_char(make_interval(mins => abs((value).minutes)), 'HH24:MI')
$$;

-- uniqueidentifier is ordered by its last six bytes first, then by the others in groups from the right; the first three groups
-- are stored turned, and are compared as they are stored [ISS: risingwave PR 27112; .NET's SqlGuid compares the stored bytes in
-- the order 10-15, 8, 9, 6, 7, 4, 5, 0-3].
CREATE FUNCTION sqlserver.guid_order(value uuid) RETURNS bytea IMMUTABLE STRICT LANGUAGE sql AS $$
  SELECT substr(b, 11, 6) || substr(b, 9, 2) || substr(b, 8, 1) || substr(b, 7, 1) || substr(b, 6, 1) || substr(b, 5, 1)
    || substr(b, 4, 1) || substr(b, 3, 1) || substr(b, 2, 1) || substr(b, 1, 1)
  FROM uuid_send(value) AS b
$$;
CREATE FUNCTION sqlserver.guid_lt(a uuid, b uuid) RETURNS boolean IMMUTABLE STRICT LANGUAGE sql AS $$ SELECT sqlserver.guid_order(a) < sqlserver.guid_order(b) $$;
CREATE FUNCTION sqlserver.guid_le(a uuid, b uuid) RETURNS boolean IMMUTABLE STRICT LANGUAGE sql AS $$ SELECT sqlserver.guid_order(a) <= sqlserver.guid_order(b) $$;
CREATE FUNCTION sqlserver.guid_gt(a uuid, b uuid) RETURNS boolean IMMUTABLE STRICT LANGUAGE sql AS $$ SELECT sqlserver.guid_order(a) > sqlserver.guid_order(b) $$;
CREATE FUNCTION sqlserver.guid_ge(a uuid, b uuid) RETURNS boolean IMMUTABLE STRICT LANGUAGE sql AS $$ SELECT sqlserver.guid_order(a) >= sqlserver.guid_order(b) $$;
CREATE FUNCTION sqlserver.guid_cmp(a uuid, b uuid) RETURNS int IMMUTABLE STRICT LANGUAGE sql AS $$ SELECT byteacmp(sqlserver.guid_order(a), sqlserver.guid_order(b)) $$;
CREATE OPERATOR sqlserver.< (leftarg = uuid, rightarg = uuid, function = sqlserver.guid_lt, commutator = OPERATOR(sqlserver.>), negator = OPERATOR(sqlserver.>=));
CREATE OPERATOR sqlserver.<= (leftarg = uuid, rightarg = uuid, function = sqlserver.guid_le, commutator = OPERATOR(sqlserver.>=), negator = OPERATOR(sqlserver.>));
CREATE OPERATOR sqlserver.> (leftarg = uuid, rightarg = uuid, function = sqlserver.guid_gt, commutator = OPERATOR(sqlserver.<), negator = OPERATOR(sqlserver.<=));
CREATE OPERATOR sqlserver.>= (leftarg = uuid, rightarg = uuid, function = sqlserver.guid_ge, commutator = OPERATOR(sqlserver.<=), negator = OPERATOR(sqlserver.<));
-- ORDER BY and indexes take the default operator class, and a type has one: PostgreSQL's own stops being it, in this database.
SET allow_system_table_mods = on;
UPDATE pg_catalog.pg_opclass SET opcdefault = false
WHERE opcname = 'uuid_ops' AND opcmethod = (SELECT oid FROM pg_catalog.pg_am WHERE amname = 'btree');
RESET allow_system_table_mods;
CREATE OPERATOR CLASS sqlserver.guid_ops DEFAULT FOR TYPE uuid USING btree AS
  OPERATOR 1 sqlserver.<, OPERATOR 2 sqlserver.<=, OPERATOR 3 pg_catalog.= (uuid, uuid), OPERATOR 4 sqlserver.>=, OPERATOR 5 sqlserver.>,
  FUNCTION 1 sqlserver.guid_cmp(uuid, uuid);

-- datetimeoffset is compared by the instant alone [DOC: datetimeoffset, time zone offset aware and preserving].
CREATE FUNCTION sqlserver.instant_lt(a sqlserver.instant, b sqlserver.instant) RETURNS boolean IMMUTABLE STRICT LANGUAGE sql AS $$ SELECT (a).utc < (b).utc $$;
CREATE FUNCTION sqlserver.instant_le(a sqlserver.instant, b sqlserver.instant) RETURNS boolean IMMUTABLE STRICT LANGUAGE sql AS $$ SELECT (a).utc <= (b).utc $$;
CREATE FUNCTION sqlserver.instant_eq(a sqlserver.instant, b sqlserver.instant) RETURNS boolean IMMUTABLE STRICT LANGUAGE sql AS $$ SELECT (a).utc = (b).utc $$;
CREATE FUNCTION sqlserver.instant_ne(a sqlserver.instant, b sqlserver.instant) RETURNS boolean IMMUTABLE STRICT LANGUAGE sql AS $$ SELECT (a).utc <> (b).utc $$;
CREATE FUNCTION sqlserver.instant_ge(a sqlserver.instant, b sqlserver.instant) RETURNS boolean IMMUTABLE STRICT LANGUAGE sql AS $$ SELECT (a).utc >= (b).utc $$;
CREATE FUNCTION sqlserver.instant_gt(a sqlserver.instant, b sqlserver.instant) RETURNS boolean IMMUTABLE STRICT LANGUAGE sql AS $$ SELECT (a).utc > (b).utc $$;
CREATE FUNCTION sqlserver.instant_cmp(a sqlserver.instant, b sqlserver.instant) RETURNS int IMMUTABLE STRICT LANGUAGE sql AS $$ SELECT timestamp_cmp((a).utc, (b).utc) $$;
CREATE OPERATOR sqlserver.< (leftarg = sqlserver.instant, rightarg = sqlserver.instant, function = sqlserver.instant_lt, commutator = OPERATOR(sqlserver.>), negator = OPERATOR(sqlserver.>=));
CREATE OPERATOR sqlserver.<= (leftarg = sqlserver.instant, rightarg = sqlserver.instant, function = sqlserver.instant_le, commutator = OPERATOR(sqlserver.>=), negator = OPERATOR(sqlserver.>));
CREATE OPERATOR sqlserver.= (leftarg = sqlserver.instant, rightarg = sqlserver.instant, function = sqlserver.instant_eq, commutator = OPERATOR(sqlserver.=), negator = OPERATOR(sqlserver.<>));
CREATE OPERATOR sqlserver.<> (leftarg = sqlserver.instant, rightarg = sqlserver.instant, function = sqlserver.instant_ne, commutator = OPERATOR(sqlserver.<>), negator = OPERATOR(sqlserver.=));
CREATE OPERATOR sqlserver.>= (leftarg = sqlserver.instant, rightarg = sqlserver.instant, function = sqlserver.instant_ge, commutator = OPERATOR(sqlserver.<=), negator = OPERATOR(sqlserver.<));
CREATE OPERATOR sqlserver.> (leftarg = sqlserver.instant, rightarg = sqlserver.instant, function = sqlserver.instant_gt, commutator = OPERATOR(sqlserver.<), negator = OPERATOR(sqlserver.<=));
CREATE OPERATOR CLASS sqlserver.instant_ops DEFAULT FOR TYPE sqlserver.instant USING btree AS
  OPERATOR 1 sqlserver.<, OPERATOR 2 sqlserver.<=, OPERATOR 3 sqlserver.=, OPERATOR 4 sqlserver.>=, OPERATOR 5 sqlserver.>,
  FUNCTION 1 sqlserver.instant_cmp(sqlserver.instant, sqlserver.instant);
CREATE FUNCTION sqlserver.offset_minutes(zone text) RETURNS int IMMUTABLE STRICT LANGUAGE sql AS $$
  SELECT (substr(zone, 2, 2)::int * 60 + substr(zone, 5, 2)::int) * CASE left(zone, 1) WHEN '-' THEN -1 ELSE 1 END
$$;
CREATE FUNCTION sqlserver.switchoffset(value sqlserver.instant, zone text) RETURNS sqlserver.instant IMMUTABLE STRICT LANGUAGE sql AS $$
  SELECT ROW((value).utc, sqlserver.offset_minutes(zone))::sqlserver.instant
$$;
CREATE FUNCTION sqlserver.todatetimeoffset(value timestamp, zone text) RETURNS sqlserver.instant IMMUTABLE STRICT LANGUAGE sql AS $$
  SELECT ROW(value - make_interval(mins => sqlserver.offset_minutes(zone)), sqlserver.offset_minutes(zone))::sqlserver.instant
$$;

CREATE OPERATOR sqlserver.+ (leftarg = text, rightarg = text, function = pg_catalog.textcat);

-- LIKE of T-SQL knows [a-z] and [^a-z]; case is ignored, as in the default collation.
CREATE FUNCTION sqlserver.like_pattern(pattern text, escape text DEFAULT NULL) RETURNS text IMMUTABLE LANGUAGE plpgsql AS $$
DECLARE
  made text := '';
  one text;
  at int := 1;
  is_in_set boolean := false;
BEGIN
  WHILE at <= length(pattern) LOOP
    one := substr(pattern, at, 1);
    IF escape IS NOT NULL AND one = escape AND NOT is_in_set THEN
      at := at + 1;
      made := made || regexp_replace(substr(pattern, at, 1), '([^a-zA-Z0-9])', '\\\1');
    ELSIF is_in_set THEN
      is_in_set := one <> ']';
      made := made || one;
    ELSIF one = '[' THEN
      is_in_set := true;
      made := made || '[';
    ELSE
      made := made || CASE one WHEN '%' THEN '.*' WHEN '_' THEN '.' ELSE regexp_replace(one, '([^a-zA-Z0-9])', '\\\1') END;
    END IF;
    at := at + 1;
  END LOOP;
  RETURN '^(?:' || made || ')$';
END $$;
CREATE FUNCTION sqlserver.is_like(value text, pattern text, escape text DEFAULT NULL) RETURNS boolean IMMUTABLE LANGUAGE sql AS $$
  SELECT (value COLLATE "C") ~* (sqlserver.like_pattern(pattern, escape) COLLATE "C")
$$;

-- rowversion: eight bytes that grow with every change of any row [DOC: rowversion].
CREATE SEQUENCE sqlserver.rowversions START 2001;
CREATE FUNCTION sqlserver.next_rowversion() RETURNS bytea VOLATILE LANGUAGE sql AS $$ SELECT int8send(nextval('sqlserver.rowversions')) $$;
CREATE FUNCTION sqlserver.bump_rowversion() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RETURN jsonb_populate_record(NEW, jsonb_build_object(TG_ARGV[0], sqlserver.next_rowversion()));
END $$;
