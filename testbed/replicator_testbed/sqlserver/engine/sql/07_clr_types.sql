-- The types that are written in .NET: hierarchyid, geometry and geography. A method of a value is a function of this schema; of NULL it is NULL
-- [DOC: SqlHierarchyId.ToString, InvokeIfReceiverIsNull = false].

CREATE FUNCTION sqlserver.clr_failed(what text) RETURNS void VOLATILE LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'A .NET Framework error occurred during execution of user-defined routine or aggregate: %', what
    USING ERRCODE = 'MS000', HINT = '6522';
END $$;

-- A hierarchyid is a list of numbers, each with 1 behind it if a dot follows, and 0 if the level ends there: lists are compared number by number,
-- so a node stands in front of its children, those in front of what was put between it and the next node (/1/, /1/5/, /1.1/, /2/), and that is
-- the order of the server [DOC: hierarchyid, comparison is in depth-first order; Hierarchical data, node paths].
CREATE FUNCTION sqlserver.to_hierarchyid(value text) RETURNS int8[] IMMUTABLE STRICT LANGUAGE plpgsql AS $$
DECLARE
  path text COLLATE "C" := value;
  found int8[] := '{}';
  level text COLLATE "C";
  parts text[];
BEGIN
  IF path !~ '^/(-?[0-9]+(\.-?[0-9]+)*/)*$' THEN
    PERFORM sqlserver.clr_failed(format('24001: SqlHierarchyId.Parse failed because the input string ''%s'' is not a valid string representation of a SqlHierarchyId node.',
      value));
  END IF;
  FOREACH level IN ARRAY string_to_array(btrim(path, '/'), '/') LOOP
    parts := string_to_array(level, '.');
    FOR i IN 1 .. cardinality(parts) LOOP
      found := found || parts[i]::int8 || (i < cardinality(parts))::int::int8;
    END LOOP;
  END LOOP;
  RETURN found;
END $$;
CREATE FUNCTION sqlserver.to_hierarchyid(value int8[]) RETURNS int8[] IMMUTABLE LANGUAGE sql AS $$ SELECT value $$;
CREATE FUNCTION sqlserver."ToString"(node int8[]) RETURNS text IMMUTABLE STRICT LANGUAGE sql AS $$
  SELECT '/' || coalesce(string_agg(node[i] || CASE node[i + 1] WHEN 1 THEN '.' ELSE '/' END, '' ORDER BY i), '')
  FROM generate_series(1, cardinality(node), 2) AS i
$$;
CREATE FUNCTION sqlserver."GetLevel"(node int8[]) RETURNS int IMMUTABLE STRICT LANGUAGE sql AS $$
  SELECT count(*)::int FROM generate_series(2, cardinality(node), 2) AS i WHERE node[i] = 0
$$;
CREATE FUNCTION sqlserver.text_of(value int8[], style int) RETURNS text IMMUTABLE LANGUAGE sql AS $$ SELECT sqlserver."ToString"(value) $$;

-- A shape's text as the server writes it: names in capitals, one blank where one is needed, numbers in their shortest form.
CREATE FUNCTION sqlserver.shape_tokens(value text) RETURNS text[] IMMUTABLE STRICT LANGUAGE sql AS $$
  SELECT coalesce(array_agg(found[1] ORDER BY at), '{}')
  FROM regexp_matches(value COLLATE "C", '([A-Za-z]+|[-+0-9.][-+0-9.eE]*|[(),]|[^\s])', 'g') WITH ORDINALITY AS each(found, at)
$$;
CREATE FUNCTION sqlserver.shape_text(value text, has_all boolean DEFAULT true) RETURNS text IMMUTABLE STRICT LANGUAGE plpgsql AS $$
DECLARE
  made text COLLATE "C" := '';
  before text COLLATE "C" := '';
  token text COLLATE "C";
  numbers int := 0;
BEGIN
  FOREACH token IN ARRAY sqlserver.shape_tokens(value) LOOP
    IF token IN ('(', ',', ')') OR (token ~ '^[A-Za-z]+$' AND upper(token) <> 'NULL') THEN
      numbers := 0;
      made := made || CASE WHEN token = '(' AND before ~ '^[A-Z]+$' THEN ' (' WHEN token = ',' THEN ', ' WHEN upper(token) = 'EMPTY' THEN ' EMPTY'
        ELSE upper(token) END;
    ELSE
      numbers := numbers + 1;
      IF has_all OR numbers <= 2 THEN
        made := made || CASE WHEN numbers > 1 THEN ' ' ELSE '' END
          || CASE upper(token) WHEN 'NULL' THEN 'NULL' ELSE token::float8::text END;
      END IF;
    END IF;
    before := upper(token);
  END LOOP;
  RETURN made;
END $$;

-- The OGC's WKB, with Z and M: 1000 is added to a kind with Z, 2000 to one with M [DOC: AsBinaryZM, whose example has 3001 for a point with both].
-- Numbers are written with the lowest byte first, as there. A missing one of a shape that has others is NaN [K]. An empty point is an empty
-- MULTIPOINT, because WKB has none [K].
CREATE FUNCTION sqlserver.wkb_number(value text) RETURNS bytea IMMUTABLE LANGUAGE sql AS $$
  SELECT string_agg(substr(b, 9 - i, 1), '' ORDER BY i)
  FROM float8send(CASE WHEN value IS NULL OR value = 'NULL' THEN 'NaN'::float8 ELSE value::float8 END) AS b, generate_series(1, 8) AS i
$$;
CREATE FUNCTION sqlserver.wkb_count(value int) RETURNS bytea IMMUTABLE STRICT LANGUAGE sql AS $$
  SELECT string_agg(substr(int4send(value), 5 - i, 1), '' ORDER BY i) FROM generate_series(1, 4) AS i
$$;
CREATE FUNCTION sqlserver.wkb_points(tokens text[], dimensions int, INOUT at int, OUT wkb bytea, OUT points int) IMMUTABLE LANGUAGE plpgsql AS $$
DECLARE
  numbers text[];
BEGIN
  wkb := '';
  points := 0;
  LOOP
    numbers := '{}';
    at := at + 1;
    WHILE tokens[at] NOT IN (',', ')') LOOP
      numbers := numbers || tokens[at];
      at := at + 1;
    END LOOP;
    IF cardinality(numbers) NOT BETWEEN 2 AND 4 THEN
      PERFORM sqlserver.clr_failed('24141: A number is expected in the well-known text.');
    END IF;
    wkb := wkb || sqlserver.wkb_number(numbers[1]) || sqlserver.wkb_number(numbers[2])
      || CASE WHEN dimensions & 1 > 0 THEN sqlserver.wkb_number(numbers[3]) ELSE '' END
      || CASE WHEN dimensions & 2 > 0 THEN sqlserver.wkb_number(numbers[4]) ELSE '' END;
    points := points + 1;
    EXIT WHEN tokens[at] = ')';
  END LOOP;
  at := at + 1;
END $$;
CREATE FUNCTION sqlserver.wkb_of(tokens text[], dimensions int, INOUT at int, OUT wkb bytea) IMMUTABLE LANGUAGE plpgsql AS $$
DECLARE
  kind int := array_position(ARRAY['POINT', 'LINESTRING', 'POLYGON', 'MULTIPOINT', 'MULTILINESTRING', 'MULTIPOLYGON', 'GEOMETRYCOLLECTION',
    'CIRCULARSTRING'], tokens[at]);
  part record;
  parts int := 0;
BEGIN
  IF kind IS NULL OR kind IN (4, 5, 6) THEN
    PERFORM sqlserver.clr_failed(format('24114: The label %s in the input well-known text (WKT) is not valid, or the model has none.', tokens[at]));
  END IF;
  at := at + 1;
  wkb := '';
  IF tokens[at] = 'EMPTY' THEN
    at := at + 1;
    kind := CASE kind WHEN 1 THEN 4 ELSE kind END;
    dimensions := 0;
  ELSIF tokens[at] IS DISTINCT FROM '(' THEN
    PERFORM sqlserver.clr_failed('24142: Expected "(" in the well-known text.');
  ELSIF kind IN (1, 2, 8) THEN
    SELECT * INTO part FROM sqlserver.wkb_points(tokens, dimensions, at);
    wkb := part.wkb;
    at := part.at;
    parts := part.points;
  ELSE
    LOOP
      at := at + 1;
      IF kind = 3 THEN
        SELECT p.at, sqlserver.wkb_count(p.points) || p.wkb AS wkb INTO part FROM sqlserver.wkb_points(tokens, dimensions, at) AS p;
      ELSE
        SELECT * INTO part FROM sqlserver.wkb_of(tokens, dimensions, at);
      END IF;
      wkb := wkb || part.wkb;
      at := part.at;
      parts := parts + 1;
      EXIT WHEN tokens[at] = ')';
    END LOOP;
    at := at + 1;
  END IF;
  wkb := '\x01'::bytea || sqlserver.wkb_count(kind + 1000 * dimensions) || CASE kind WHEN 1 THEN '' ELSE sqlserver.wkb_count(parts) END || wkb;
END $$;
-- 1: a point has a Z; 2: one has an M.
CREATE FUNCTION sqlserver.shape_dimensions(wkt text) RETURNS int IMMUTABLE STRICT LANGUAGE sql AS $$
  SELECT coalesce(max((p[3] <> 'NULL')::int), 0) + 2 * coalesce(max((p[4] <> 'NULL')::int), 0)
  FROM regexp_split_to_table(regexp_replace(wkt COLLATE "C", '[A-Z]{5,}', '', 'g'), '[(),]+') AS point,
    LATERAL (SELECT regexp_split_to_array(btrim(point), '\s+') AS p) AS parts
$$;
CREATE FUNCTION sqlserver.shape_wkb(wkt text, dimensions int) RETURNS bytea IMMUTABLE STRICT LANGUAGE sql AS $$
  SELECT made.wkb FROM sqlserver.wkb_of(sqlserver.shape_tokens(wkt), dimensions, 1) AS made
$$;
CREATE FUNCTION sqlserver.shape_of(wkt text, srid int) RETURNS sqlserver.shape IMMUTABLE STRICT LANGUAGE plpgsql AS $$
DECLARE
  known text := sqlserver.shape_text(wkt);
BEGIN
  -- What cannot be read fails here, where it is stored.
  PERFORM sqlserver.shape_wkb(known, sqlserver.shape_dimensions(known));
  RETURN ROW(srid, known)::sqlserver.shape;
END $$;

-- Of values of .NET, too, DATALENGTH says how many bytes they have; here it is the length of their text [K].
CREATE FUNCTION sqlserver.datalength(value sqlserver.shape) RETURNS int IMMUTABLE STRICT LANGUAGE sql AS $$ SELECT octet_length(value::text) $$;

-- A text is a shape of the usual reference: 0 of the plane, 4326 of the earth [DOC: geometry Parse, geography Parse].
CREATE FUNCTION sqlserver.to_geometry(value text) RETURNS sqlserver.shape IMMUTABLE STRICT LANGUAGE sql AS $$ SELECT sqlserver.shape_of(value, 0) $$;
CREATE FUNCTION sqlserver.to_geometry(value sqlserver.shape) RETURNS sqlserver.shape IMMUTABLE LANGUAGE sql AS $$ SELECT value $$;
CREATE FUNCTION sqlserver.to_geography(value text) RETURNS sqlserver.shape IMMUTABLE STRICT LANGUAGE sql AS $$ SELECT sqlserver.shape_of(value, 4326) $$;
CREATE FUNCTION sqlserver.to_geography(value sqlserver.shape) RETURNS sqlserver.shape IMMUTABLE LANGUAGE sql AS $$ SELECT value $$;
CREATE FUNCTION sqlserver."geometry::STGeomFromText"(wkt text, srid int) RETURNS sqlserver.shape IMMUTABLE LANGUAGE sql AS $$ SELECT sqlserver.shape_of(wkt, srid) $$;
CREATE FUNCTION sqlserver."geography::STGeomFromText"(wkt text, srid int) RETURNS sqlserver.shape IMMUTABLE LANGUAGE sql AS $$ SELECT sqlserver.shape_of(wkt, srid) $$;
CREATE FUNCTION sqlserver."geography::Point"(latitude float8, longitude float8, srid int) RETURNS sqlserver.shape IMMUTABLE LANGUAGE sql AS
$$ SELECT sqlserver.shape_of(format('POINT (%s %s)', longitude, latitude), srid) $$;
CREATE FUNCTION sqlserver."hierarchyid::Parse"(path text) RETURNS sqlserver."hierarchyid" IMMUTABLE LANGUAGE sql AS $$ SELECT sqlserver.to_hierarchyid(path) $$;
CREATE FUNCTION sqlserver."hierarchyid::GetRoot"() RETURNS sqlserver."hierarchyid" IMMUTABLE LANGUAGE sql AS $$ SELECT '{}'::int8[] $$;

CREATE FUNCTION sqlserver."AsBinaryZM"(value sqlserver.shape) RETURNS bytea IMMUTABLE STRICT LANGUAGE sql AS $$
  SELECT sqlserver.shape_wkb((value).wkt, sqlserver.shape_dimensions((value).wkt))
$$;
CREATE FUNCTION sqlserver."STAsBinary"(value sqlserver.shape) RETURNS bytea IMMUTABLE STRICT LANGUAGE sql AS $$ SELECT sqlserver.shape_wkb((value).wkt, 0) $$;
CREATE FUNCTION sqlserver."ToString"(value sqlserver.shape) RETURNS text IMMUTABLE STRICT LANGUAGE sql AS $$ SELECT (value).wkt $$;
CREATE FUNCTION sqlserver."AsTextZM"(value sqlserver.shape) RETURNS text IMMUTABLE STRICT LANGUAGE sql AS $$ SELECT (value).wkt $$;
CREATE FUNCTION sqlserver."STAsText"(value sqlserver.shape) RETURNS text IMMUTABLE STRICT LANGUAGE sql AS $$ SELECT sqlserver.shape_text((value).wkt, false) $$;
CREATE FUNCTION sqlserver."STSrid"(value sqlserver.shape) RETURNS int IMMUTABLE STRICT LANGUAGE sql AS $$ SELECT (value).srid $$;
CREATE FUNCTION sqlserver.text_of(value sqlserver.shape, style int) RETURNS text IMMUTABLE LANGUAGE sql AS $$ SELECT (value).wkt $$;
