"""Statements as migration tools write them. `{t}` is a table of this form, `{p}` one that it may refer to."""

from __future__ import annotations

from typing import Final, NamedTuple

TABLE: Final = """
CREATE TABLE {t} (id BIGINT NOT NULL AUTO_INCREMENT, name VARCHAR(255), email VARCHAR(100) NOT NULL DEFAULT '', age INT, price DECIMAL(8,2),
  status ENUM('new','paid') NOT NULL DEFAULT 'new', bio TEXT, created_at DATETIME, day DATE, active TINYINT(1) NOT NULL DEFAULT 0,
  user_id BIGINT, ratio FLOAT, PRIMARY KEY (id), KEY idx_email (email), KEY idx_age (age), CONSTRAINT {t}_adult CHECK (age >= 0))
  ENGINE=InnoDB DEFAULT CHARSET=utf8mb4
"""
LATIN: Final = "CREATE TABLE {t} (id INT NOT NULL PRIMARY KEY, name VARCHAR(50) NOT NULL DEFAULT '', bio TEXT) DEFAULT CHARSET=latin1"
PAIRS: Final = "CREATE TABLE {t} (a INT NOT NULL, b INT NOT NULL, c INT, PRIMARY KEY (a, b))"
KEYLESS: Final = "CREATE TABLE {t} (a INT NOT NULL, b INT NOT NULL, c INT)"
UNIQUE: Final = "CREATE TABLE {t} (a INT NOT NULL, b INT NOT NULL, c INT, UNIQUE KEY u (a))"
PARTED: Final = (
    "CREATE TABLE {t} (id INT NOT NULL, a INT, PRIMARY KEY (id)) PARTITION BY RANGE (id)"
    " (PARTITION p0 VALUES LESS THAN (10), PARTITION p1 VALUES LESS THAN (20), PARTITION p9 VALUES LESS THAN MAXVALUE)"
)
GENERATED: Final = (
    "CREATE TABLE {t} (id INT NOT NULL PRIMARY KEY, a INT, g INT AS (a + 1) STORED, v INT AS (a + 2) VIRTUAL)"
)
FOREIGN: Final = "CREATE TABLE {t} (id INT NOT NULL PRIMARY KEY, p INT, KEY p (p), CONSTRAINT {t}_fk FOREIGN KEY (p) REFERENCES {p} (id))"


class Case(NamedTuple):
    """A statement.

    Attributes:
        text: The statement.
        events: What the log brings: `alter`; `rows`, an `alter` that leaves rows to a snapshot; `truncate`, `drop`, `create`; each once.
        table: The table before it.
        only: The server that knows it; empty: both.
    """

    text: str
    events: str = "alter"
    table: str = TABLE
    only: str = ""


RAILS: Final = (
    Case("ALTER TABLE `{t}` ADD `nickname` varchar(255)"),
    Case("ALTER TABLE `{t}` ADD `nickname` varchar(255) DEFAULT 'none' NOT NULL"),
    Case("ALTER TABLE `{t}` ADD COLUMN `nickname` varchar(255) DEFAULT NULL"),
    Case("ALTER TABLE `{t}` ADD `admin` tinyint(1) DEFAULT 0 NOT NULL"),
    Case("ALTER TABLE `{t}` ADD `admin` tinyint(1) DEFAULT FALSE NOT NULL"),
    Case("ALTER TABLE `{t}` ADD `seen_at` datetime(6)"),
    Case("ALTER TABLE `{t}` ADD `updated_at` datetime(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6)", "rows"),
    Case("ALTER TABLE `{t}` ADD `created_on` datetime(6) DEFAULT CURRENT_TIMESTAMP(6) NOT NULL, "
         "ADD `updated_on` datetime(6) DEFAULT CURRENT_TIMESTAMP(6) NOT NULL", "rows"),
    Case("ALTER TABLE `{t}` ADD `company_id` bigint, ADD INDEX `index_on_company_id` (`company_id`)"),
    Case("ALTER TABLE `{t}` ADD `company_id` int, ADD CONSTRAINT `fk_{t}` FOREIGN KEY (`company_id`) REFERENCES `{p}` (`id`)"),
    Case("ALTER TABLE `{t}` CHANGE `name` `full_name` varchar(255) DEFAULT NULL"),
    Case("ALTER TABLE `{t}` RENAME COLUMN `name` TO `full_name`"),
    Case("ALTER TABLE `{t}` CHANGE `age` `age` bigint DEFAULT NULL"),
    Case("ALTER TABLE `{t}` CHANGE `price` `price` decimal(12,4) DEFAULT NULL"),
    Case("ALTER TABLE `{t}` CHANGE `bio` `bio` longtext"),
    Case("ALTER TABLE `{t}` CHANGE `bio` `bio` mediumtext COLLATE utf8mb4_bin DEFAULT NULL"),
    Case("ALTER TABLE `{t}` CHANGE `active` `active` int NOT NULL DEFAULT 0"),
    Case("ALTER TABLE `{t}` CHANGE `age` `age` varchar(255)", "rows"),
    Case("ALTER TABLE `{t}` CHANGE `id` `id` bigint NOT NULL AUTO_INCREMENT", "rows"),
    Case("ALTER TABLE `{t}` CHANGE `name` `name` varchar(255) DEFAULT 'x'"),
    Case("ALTER TABLE `{t}` ALTER COLUMN `name` SET DEFAULT 'x'"),
    Case("ALTER TABLE `{t}` ALTER `email` DROP DEFAULT"),
    Case("ALTER TABLE `{t}` DROP COLUMN `name`"),
    Case("ALTER TABLE `{t}` DROP COLUMN `name`, DROP COLUMN `price`"),
    Case("CREATE INDEX `index_on_name` ON `{t}` (`name`)", ""),
    Case("CREATE UNIQUE INDEX `index_on_user_id` USING btree ON `{t}` (`user_id`) COMMENT 'one'", ""),
    Case("ALTER TABLE `{t}` ADD INDEX `i` USING btree (`name`, `email` DESC), ALGORITHM = INPLACE", ""),
    Case("ALTER TABLE `{t}` RENAME INDEX `idx_email` TO `idx_mail`", ""),
    Case("DROP INDEX `idx_email` ON `{t}`", ""),
    Case("ALTER TABLE `{t}` ADD CONSTRAINT `{t}_c` CHECK (price > 0)", ""),
    Case("ALTER TABLE `{t}` DROP CONSTRAINT `{t}_adult`", ""),
    Case("ALTER TABLE `{t}` COMMENT 'people'", ""),
    Case("ALTER TABLE `{t}` CHANGE `name` `name` varchar(255) COMMENT 'it''s a \"name\"'"),
    Case("ALTER TABLE `{t}` ADD `uuid` binary(16)"),
    Case("ALTER TABLE `{t}` ADD `data` json"),
    Case("ALTER TABLE `{t}` ADD `total` decimal(10,2) GENERATED ALWAYS AS (price * 2) STORED", "rows"),
    Case("TRUNCATE TABLE `{t}`", "truncate"),
)  # fmt: skip

DJANGO: Final = (
    Case("ALTER TABLE `{t}` ADD COLUMN `phone` varchar(20) DEFAULT '' NOT NULL"),
    Case("ALTER TABLE `{t}` ALTER COLUMN `email` DROP DEFAULT"),
    Case("ALTER TABLE `{t}` ADD COLUMN `is_staff` bool DEFAULT b'0' NOT NULL"),
    Case("ALTER TABLE `{t}` ADD COLUMN `is_staff` bool DEFAULT 0 NOT NULL, ALGORITHM=INSTANT"),
    Case("ALTER TABLE `{t}` ADD COLUMN `joined` datetime(6) DEFAULT '2024-02-29 10:11:12.123456' NOT NULL"),
    Case("ALTER TABLE `{t}` ADD COLUMN `joined` datetime(6) NULL"),
    Case("ALTER TABLE `{t}` ADD COLUMN `score` double precision DEFAULT 0.0 NOT NULL"),
    Case("ALTER TABLE `{t}` ADD COLUMN `amount` numeric(10, 2) DEFAULT '0.00' NOT NULL"),
    Case("ALTER TABLE `{t}` ADD COLUMN `counter` integer UNSIGNED DEFAULT 0 NOT NULL CHECK (`counter` >= 0)"),
    Case("ALTER TABLE `{t}` ADD COLUMN `token` char(32) DEFAULT '0123456789abcdef0123456789abcdef' NOT NULL UNIQUE", "alter"),
    Case("ALTER TABLE `{t}` ADD COLUMN `group_id` integer NULL , ADD CONSTRAINT `{t}_g` FOREIGN KEY (`group_id`) REFERENCES `{p}`(`id`)"),
    Case("ALTER TABLE `{t}` ADD COLUMN `data` json DEFAULT ('{{}}') NOT NULL", "rows"),
    Case("ALTER TABLE `{t}` MODIFY `name` varchar(255) NOT NULL"),
    Case("ALTER TABLE `{t}` MODIFY `name` varchar(500) NULL"),
    Case("ALTER TABLE `{t}` MODIFY `age` bigint NULL"),
    Case("ALTER TABLE `{t}` MODIFY `age` bigint NOT NULL"),
    Case("ALTER TABLE `{t}` MODIFY `bio` longtext NOT NULL"),
    Case("ALTER TABLE `{t}` MODIFY `created_at` datetime(6) NULL"),
    Case("ALTER TABLE `{t}` MODIFY `ratio` double precision NULL"),
    Case("ALTER TABLE `{t}` MODIFY `id` bigint AUTO_INCREMENT NOT NULL", "rows"),
    Case("ALTER TABLE `{t}` MODIFY `day` datetime(6) NULL"),
    Case("ALTER TABLE `{t}` CHANGE `name` `title` varchar(255) NULL"),
    Case("ALTER TABLE `{t}` DROP COLUMN `bio`"),
    Case("ALTER TABLE `{t}` DROP COLUMN `bio` CASCADE", only="mariadb"),
    Case("ALTER TABLE `{t}` ADD CONSTRAINT `{t}_uniq` UNIQUE (`email`)", ""),
    Case("ALTER TABLE `{t}` DROP INDEX `idx_age`", ""),
    Case("ALTER TABLE `{t}` DROP FOREIGN KEY `{t}_fk`", "", FOREIGN),
    Case("ALTER TABLE `{t}` DROP PRIMARY KEY, ADD PRIMARY KEY (`b`, `a`)", "alter", PAIRS),
    Case("ALTER TABLE `{t}` DROP PRIMARY KEY", "alter", PAIRS),
    Case("ALTER TABLE `{t}` ADD CONSTRAINT `x` PRIMARY KEY (`a`)", "alter", KEYLESS),
    Case("ALTER TABLE `{t}` ADD COLUMN `id` bigint AUTO_INCREMENT NOT NULL PRIMARY KEY", "rows", KEYLESS),
    Case("CREATE INDEX `{t}_i` ON `{t}` (`name`, `email`)", ""),
    Case("CREATE INDEX `{t}_i` ON `{t}` ((lower(`name`)))", "", only="mysql"),
)  # fmt: skip

LARAVEL: Final = (
    Case("alter table `{t}` add `nick` varchar(255) null"),
    Case("alter table `{t}` add `nick` varchar(191) character set utf8mb4 collate 'utf8mb4_unicode_ci' not null default 'x' after `name`"),
    Case("alter table `{t}` add `flag` tinyint(1) not null default '0', add `level` tinyint unsigned not null default '1'"),
    Case("alter table `{t}` add `deleted_at` timestamp null"),
    Case("alter table `{t}` add `created` timestamp null, add `updated` timestamp null"),
    Case("alter table `{t}` add `verified` timestamp not null default CURRENT_TIMESTAMP", "rows"),
    Case("alter table `{t}` add `amount` decimal(15, 4) unsigned not null default '0'"),
    Case("alter table `{t}` add `price2` double(8, 2) null"),
    Case("alter table `{t}` add `kind` enum('a', 'b') not null default 'a'"),
    Case("alter table `{t}` add `tags` set('x', 'y') not null"),
    Case("alter table `{t}` add `ip` varchar(45) null, add `mac` varchar(17) null, add `blob` blob null"),
    Case("alter table `{t}` add `born` year null, add `wakes` time null, add `ends` date null"),
    Case("alter table `{t}` add `uuid` char(36) not null first"),
    Case("alter table `{t}` add `team_id` bigint unsigned null after `id`"),
    Case("alter table `{t}` modify `name` varchar(300) null"),
    Case("alter table `{t}` modify `bio` mediumtext not null"),
    Case("alter table `{t}` modify `status` enum('new', 'paid', 'void') not null default 'new'"),
    Case("alter table `{t}` modify `status` enum('void', 'new', 'paid') not null default 'new'"),
    Case("alter table `{t}` modify `status` varchar(20) not null"),
    Case("alter table `{t}` modify `age` smallint null", "rows"),
    Case("alter table `{t}` modify `price` decimal(10, 2) null default '0'"),
    Case("alter table `{t}` change `name` `title` varchar(255) null"),
    Case("alter table `{t}` rename column `name` to `title`"),
    Case("alter table `{t}` drop `name`, drop `bio`"),
    Case("alter table `{t}` add primary key `pk` (`a`, `b`)", "alter", KEYLESS),
    Case("alter table `{t}` drop primary key", "alter", PAIRS),
    Case("alter table `{t}` add unique `u`(`email`)", ""),
    Case("alter table `{t}` add fulltext `f`(`bio`)", ""),
    Case("alter table `{t}` add index `i`(`name`(20))", ""),
    Case("alter table `{t}` drop index `idx_email`", ""),
    Case("alter table `{t}` add constraint `{t}_p` foreign key (`p`) references `{p}` (`id`) on delete restrict", "", FOREIGN),
    Case("alter table `{t}` add `point` point null"),
    Case("alter table `{t}` add `sum` int as (age * 2)", "rows"),
    Case("alter table `{t}` comment = 'x'", ""),
    Case("alter table `{t}` auto_increment = 1000", ""),
    Case("drop table if exists `{t}`", "drop"),
)  # fmt: skip

FLYWAY: Final = (  # and Liquibase, Hibernate, Prisma, Sequelize, TypeORM, Knex, golang-migrate
    Case("ALTER TABLE {t} ADD name2 VARCHAR(255) NULL"),
    Case("ALTER TABLE {t} ADD name2 VARCHAR(255) DEFAULT 'a b' NULL COMMENT 'second'"),
    Case("ALTER TABLE {t} ADD flag BIT(1) DEFAULT 0 NOT NULL"),
    Case("ALTER TABLE {t} ADD flag BIT DEFAULT b'1' NULL"),
    Case("ALTER TABLE {t} MODIFY name VARCHAR(500)"),
    Case("ALTER TABLE {t} MODIFY age BIGINT"),
    Case("ALTER TABLE {t} DROP COLUMN name"),
    Case("ALTER TABLE {t} CHANGE name full_name VARCHAR(255) NOT NULL"),
    Case("ALTER TABLE {t} ALTER age SET DEFAULT 5"),
    Case("ALTER TABLE {t} ADD CONSTRAINT pk PRIMARY KEY (a)", "alter", KEYLESS),
    Case("ALTER TABLE {t} DROP PRIMARY KEY, ADD id INT AUTO_INCREMENT PRIMARY KEY FIRST", "rows", PAIRS),
    Case("ALTER TABLE {t} ADD CONSTRAINT uk UNIQUE (email)", ""),
    Case("alter table {t} add column version integer not null default 0"),
    Case("alter table {t} add column t longtext, add column b bit not null, add column d datetime(6)"),
    Case("alter table {t} modify column status enum ('new','paid','void')"),
    Case("alter table {t} add constraint UK_x unique (email)", ""),
    Case("ALTER TABLE `{t}` ADD COLUMN `role` ENUM('USER', 'ADMIN') NOT NULL DEFAULT 'USER'"),
    Case("ALTER TABLE `{t}` ADD COLUMN `updatedAt` DATETIME(3) NOT NULL", "rows"),
    Case("ALTER TABLE `{t}` ADD COLUMN `createdAt` DATETIME(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3), ADD COLUMN `x` INTEGER NULL", "rows"),
    Case("ALTER TABLE `{t}` DROP COLUMN `bio`, ADD COLUMN `about` TEXT NULL, MODIFY `name` VARCHAR(191) NOT NULL", "rows"),
    Case("ALTER TABLE `{t}` DROP PRIMARY KEY, MODIFY `id` BIGINT NOT NULL, ADD PRIMARY KEY (`id`)"),
    Case("ALTER TABLE `{t}` ADD `x` VARCHAR(255), ADD UNIQUE INDEX `i` (`x`)"),
    Case("ALTER TABLE `{t}` CHANGE `created_at` `createdAt` DATETIME NOT NULL DEFAULT '2000-01-01 00:00:00'"),
    Case("ALTER TABLE `{t}` CHANGE `name` `name` VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_unicode_ci NULL DEFAULT NULL"),
    Case("ALTER TABLE `{t}` ADD `x` tinyint NOT NULL DEFAULT 1 COMMENT ''"),
    Case("ALTER TABLE `{t}` ADD `a1` int NULL, ADD `a2` int NULL AFTER `a1`, CHANGE `user_id` `owner_id` bigint NULL AFTER `a2`"),
    Case("/* ApplicationName=DBeaver 23.1 */ ALTER TABLE {t} ADD zip varchar(10) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci NULL"),
    Case("ALTER TABLE `{t}` \nADD COLUMN `zip` VARCHAR(10) NULL AFTER `bio`,\n"
         "CHANGE COLUMN `name` `name` VARCHAR(300) NOT NULL ,\nADD INDEX `z` (`zip` ASC) VISIBLE;\n", only="mysql"),
    Case("ALTER TABLE {t} ADD COLUMN IF NOT EXISTS zip INT, ADD COLUMN IF NOT EXISTS name INT", only="mariadb"),
    Case("ALTER TABLE {t} DROP COLUMN IF EXISTS nosuch, MODIFY COLUMN IF EXISTS age BIGINT", only="mariadb"),
    Case("ALTER TABLE IF EXISTS {t} RENAME COLUMN IF EXISTS name TO n, ADD COLUMN (x INT, y INT)", only="mariadb"),
    Case("ALTER TABLE {t} ADD (x INT, y VARCHAR(5) DEFAULT 'a', KEY (x), UNIQUE KEY uy (y))"),
    Case("ALTER ONLINE TABLE {t} ADD x INT", only="mariadb"),
    Case("ALTER IGNORE TABLE {t} ADD x INT", "rows", only="mariadb"),
    Case("SET STATEMENT max_statement_time=60 FOR ALTER TABLE {t} ADD x INT", only="mariadb"),
    Case("ALTER TABLE {t} WAIT 5 ADD x INT", only="mariadb"),
    Case("ALTER TABLE {t} ADD u UUID, ADD i6 INET6", only="mariadb"),
    Case("CREATE OR REPLACE TABLE {t} (id INT PRIMARY KEY, name VARCHAR(5))", "create", only="mariadb"),
    Case("TRUNCATE {t}", "truncate"),
    Case("DROP TABLE {t} CASCADE", "drop"),
)  # fmt: skip

WORDPRESS: Final = (  # dbDelta, plugins, gh-ost and pt-online-schema-change run with --alter in place
    Case("ALTER TABLE {t} CHANGE COLUMN `name` name varchar(255) NOT NULL default ''"),
    Case("ALTER TABLE {t} ADD COLUMN comment_type varchar(20) NOT NULL default ''"),
    Case("ALTER TABLE {t} ADD KEY comment_type (name(10))", ""),
    Case("ALTER TABLE {t} ADD `rank` bigint(20) unsigned NOT NULL default '0' AFTER `id`"),
    Case("ALTER TABLE {t} MODIFY id bigint(20) unsigned NOT NULL auto_increment", "rows"),
    Case("ALTER TABLE {t} ADD stamp datetime NOT NULL default '0000-00-00 00:00:00'", "rows"),
    Case("ALTER TABLE {t} CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_unicode_ci", "alter", LATIN),
    Case("ALTER TABLE {t} CONVERT TO CHARACTER SET utf8mb4", "alter", LATIN),
    Case("ALTER TABLE {t} DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin", "", LATIN),
    Case("ALTER TABLE {t} MODIFY name VARBINARY(50)", "rows", LATIN),
    Case("ALTER TABLE {t} MODIFY name VARCHAR(50) CHARACTER SET utf8mb4 NOT NULL", "alter", LATIN),
    Case("ALTER TABLE {t} DROP PRIMARY KEY, ADD PRIMARY KEY (id, email)"),
    Case("ALTER TABLE {t} DROP id, ADD PRIMARY KEY (email)"),
    Case("ALTER TABLE {t} ENGINE=InnoDB", "create"),
    Case("ALTER TABLE {t} ENGINE=InnoDB ROW_FORMAT=DYNAMIC", "create"),
    Case("ALTER TABLE {t} ROW_FORMAT=COMPRESSED KEY_BLOCK_SIZE=8", ""),
    Case("ALTER TABLE {t} ADD x INT, ENGINE=InnoDB", "rows"),
    Case("ALTER TABLE {t} ADD COLUMN x INT NOT NULL DEFAULT 0, ALGORITHM=INPLACE, LOCK=NONE"),
    Case("ALTER TABLE {t} ADD COLUMN x INT, ALGORITHM=INSTANT"),
    Case("ALTER TABLE {t} ADD COLUMN x INT FIRST, DROP COLUMN bio, RENAME COLUMN name TO title"),
    Case("ALTER TABLE {t} ADD COLUMN x INT, ALGORITHM=COPY"),
    Case("alter /* gh-ost `d`.`t` */ table `{t}` add column x int default 7"),
    Case("ALTER TABLE {t} /*!50000 ADD */ x INT /*!80023 INVISIBLE */", only="mysql"),
    Case("ALTER TABLE {t} ADD x INT INVISIBLE"),
    Case("ALTER TABLE {t} ALTER COLUMN name SET INVISIBLE", "", only="mysql"),
    Case("ALTER TABLE {t} ALTER INDEX idx_email INVISIBLE", "", only="mysql"),
    Case("ALTER TABLE {t} ALTER INDEX idx_email IGNORED", "", only="mariadb"),
    Case("ALTER TABLE {t} ALTER CHECK {t}_adult NOT ENFORCED", "", only="mysql"),
    Case("ALTER TABLE {t} ORDER BY name", ""),
    Case("ALTER TABLE {t} FORCE", ""),
    Case("ALTER TABLE {t} DISABLE KEYS", ""),
    Case("ALTER TABLE {t} ADD x BIGINT UNSIGNED NOT NULL AUTO_INCREMENT UNIQUE, MODIFY id BIGINT NOT NULL", "rows"),
    Case("ALTER TABLE {t} ADD x SERIAL, MODIFY id BIGINT NOT NULL", "rows"),
    Case("ALTER TABLE {t} ADD x INT REFERENCES {p} (id)"),
    Case("ALTER TABLE {t} ADD area MULTIPOLYGON, ADD parts GEOMETRYCOLLECTION, ADD track MULTILINESTRING, ADD dots MULTIPOINT"),
    Case("ALTER TABLE {t} ADD parts GEOMCOLLECTION, ADD place POINT SRID 4326", only="mysql"),
    Case("ALTER TABLE {t} ADD x VARCHAR(20000) CHARACTER SET latin1, ADD y VARBINARY(20000)"),
    Case("ALTER TABLE {t} ADD x TEXT(1000), ADD y LONG VARCHAR, ADD z NATIONAL VARCHAR(9)"),
    Case("ALTER TABLE {t} DROP COLUMN g, DROP COLUMN v", "alter", GENERATED),
    Case("ALTER TABLE {t} MODIFY g INT", "alter", GENERATED),
    Case("ALTER TABLE {t} MODIFY g INT AS (a + 5) STORED", "rows", GENERATED),
    Case("ALTER TABLE {t} DROP v, ADD v INT AS (a * 3) VIRTUAL AFTER a", "rows", GENERATED),
    Case("ALTER TABLE {t} CHANGE a b INT NOT NULL", "alter", PAIRS.replace(" b INT NOT NULL,", "").replace("(a, b)", "(a)")),
    Case("ALTER TABLE {t} MODIFY a BIGINT NOT NULL, MODIFY b BIGINT NOT NULL", "alter", PAIRS),
    Case("ALTER TABLE {t} DROP PRIMARY KEY, DROP a, ADD PRIMARY KEY (b)", "alter", PAIRS),
    Case("ALTER TABLE {t} DROP a", "alter", PAIRS, only="mysql"),
    Case("ALTER TABLE {t} DROP INDEX u, ADD UNIQUE KEY u (b)", "alter", UNIQUE),
    Case("ALTER TABLE {t} DROP INDEX u", "alter", UNIQUE),
    Case("ALTER TABLE {t} ADD UNIQUE KEY u (b)", "alter", KEYLESS),
    Case("ALTER TABLE {t} ADD PRIMARY KEY (b)", "alter", UNIQUE),
    Case("DROP INDEX u ON {t}", "alter", UNIQUE),
    Case("DROP INDEX `PRIMARY` ON {t}", "alter", PAIRS),
)  # fmt: skip

PARTITIONS: Final = (
    Case("ALTER TABLE {t} ADD COLUMN x INT", "alter", PARTED),
    Case("ALTER TABLE {t} REORGANIZE PARTITION p9 INTO ("
         "PARTITION p2 VALUES LESS THAN (30), PARTITION p9 VALUES LESS THAN MAXVALUE)", "", PARTED),
    Case("ALTER TABLE {t} DROP PARTITION p0", "create", PARTED),
    Case("ALTER TABLE {t} TRUNCATE PARTITION p0, p1", "create", PARTED),
    Case("ALTER TABLE {t} REMOVE PARTITIONING", "", PARTED),
    Case("ALTER TABLE {t} PARTITION BY HASH (id) PARTITIONS 4", ""),
    Case("ALTER TABLE {t} ADD x INT PARTITION BY HASH (id) PARTITIONS 2"),
    Case("ALTER TABLE {t} ADD x INT REMOVE PARTITIONING", "alter", PARTED),
    Case("ALTER TABLE {t} REBUILD PARTITION p0", "", PARTED),
    Case("ALTER TABLE {t} ANALYZE PARTITION ALL", "", PARTED),
    Case("OPTIMIZE TABLE {t}", ""),
    Case("ANALYZE TABLE {t}", ""),
)  # fmt: skip

MIGRATIONS: Final = {
    "rails": RAILS, "django": DJANGO, "laravel": LARAVEL, "flyway": FLYWAY, "wordpress": WORDPRESS, "partitions": PARTITIONS,
}  # fmt: skip
